"""What runs in the sandbox: standard library only, no imports from the package."""
