// What drafts between the passes of a run: a table of functions. core/proposer.py says the same. Included by run.h, and by
// each file that has such functions (propose_*.h).
#pragma once

#include "draft.h"

const i64 MOST_NODES = 64;  // of one draft: the bits of a tree word

extern "C" {
struct Turn {  // one text before a pass
  i64 place;   // among the proposer's
  i64 said;    // tokens that the run has brought it so far
  i64 room;    // deepest node that could be kept
  i64 base, root;  // committed rows before the run, and the token behind them, which has the row `base`
  double temperature;
  const i64 *tokens, *keys, *table;  // those said; noise of the next ones; blocks
  i64 last() const { return said ? tokens[said - 1] : root; }
  i64 known() const { return base + 1 + said; }  // tokens of the text: where the nodes' slots begin
};

struct Draft {  // token and parent (an earlier node, or -1 for the text's last token) are the proposer's to fill, up to `count`
  i64 count, token[MOST_NODES], parent[MOST_NODES], depth[MOST_NODES];
  uint64_t word[MOST_NODES];
};

struct Kept {  // nodes of a draft, from depth 1 down
  i64 count, node[MOST_NODES];
};

struct Proposer {
  void* state;
  void (*propose)(void* state, i64 turns, const Turn* turn, Draft* draft);
  void (*kept)(void* state, i64 turns, const Turn* turn, const Draft* draft, const Kept* kept);
  void (*done)(void* state);  // behind the run; or null
};
}
