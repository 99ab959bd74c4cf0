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
  i64 most;    // nodes
  i64 base, root;  // committed rows before the run, and the token behind them, which has the row `base`
  Warp warp;
  const i64 *tokens, *keys, *table;  // those said; noise of the next ones; blocks
  const float* hidden;  // of the row that the last of those said was drawn from, the run's first tap; null: none is said
  i64 taps;             // numbers from there to the same of the next tap
  Warp sharper(double sharp) const { return warp.temperature > 0 ? warp : Warp{sharp, 0, 1, 0, warp.rules}; }  // where it is greedy
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

// The rows that a draft model lacks of a text, of which it has `first`; the last is wanted. `behind`: what it lacked before
// the run, a segment each
static void lacking(Laid& rows, const Pass& behind, const Turn& it, i64 first) {
  const Segment& segment = behind.segment[it.place];
  rows.text(first, behind.table + it.place * behind.width, segment.shift, segment.adapter);
  for (i64 j = first; j < it.known(); j++) {
    const i64 token = j > it.base ? it.tokens[j - it.base - 1] : behind.token[segment.start + j - segment.base];
    rows.row(token, j, j, 0, j == it.known() - 1);
  }
}
