"""Words that SQLite or DuckDB reads as its own: a table or column of such a name is quoted."""

KEYWORDS = frozenset(
    {
        "abort", "action", "add", "after", "all", "alter", "always", "analyse", "analyze", "and", "anti", "any",
        "array", "as", "asc", "asof", "asymmetric", "attach", "authorization", "autoincrement", "before", "begin",
        "between", "binary", "both", "by", "cascade", "case", "cast", "check", "collate", "collation", "column",
        "commit", "concurrently", "conflict", "constraint", "create", "cross", "current", "current_date",
        "current_time", "current_timestamp", "current_user", "database", "default", "deferrable", "deferred",
        "delete", "desc", "describe", "detach", "distinct", "do", "drop", "each", "else", "end", "escape", "except",
        "exclude", "exclusive", "exists", "explain", "fail", "fetch", "false", "filter", "first", "following", "for",
        "foreign", "freeze", "from", "full", "generated", "glob", "grant", "group", "groups", "having", "if",
        "ignore", "ilike", "immediate", "in", "index", "indexed", "initially", "inner", "insert", "instead",
        "intersect", "into", "is", "isnull", "join", "key", "lambda", "last", "lateral", "leading", "left", "like",
        "limit", "match", "materialized", "natural", "no", "not", "nothing", "notnull", "null", "nulls", "of",
        "offset", "on", "only", "or", "order", "others", "outer", "over", "overlaps", "partition", "pivot",
        "pivot_longer", "pivot_wider", "placing", "plan", "positional", "pragma", "preceding", "primary", "qualify",
        "query", "raise", "range", "recursive", "references", "regexp", "reindex", "release", "rename", "replace",
        "restrict", "returning", "right", "rollback", "row", "rows", "savepoint", "select", "semi", "session_user",
        "set", "show", "similar", "some", "summarize", "symmetric", "table", "tablesample", "temp", "temporary",
        "then", "ties", "to", "trailing", "transaction", "trigger", "true", "try_cast", "unbounded", "union",
        "unique", "unpivot", "update", "user", "using", "vacuum", "values", "variadic", "view", "virtual", "when",
        "where", "window", "with", "without",
    }
)  # fmt: skip
