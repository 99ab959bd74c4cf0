"""G1-G4: what code in the sandbox, and a query of the text-to-SQL application, may use."""


def run() -> bool:
    return True
