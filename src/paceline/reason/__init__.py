"""Above tokens: what writes an answer with several models, branches or retrievals, proposed cheaply and verified."""
