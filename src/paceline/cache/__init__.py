"""Book-keeping of the paged K/V cache: tables, shared prefixes, transactions. Imports neither torch nor a clock."""
