// Prompt lookup within a run; draft/ngram.py is the slow twin and says what is looked for.
#pragma once

#include "proposer.h"

struct Lookup {  // in one growing text
  std::vector<i64> tokens;
  std::vector<double> rate;  // [longest + 1][hits, tries]
  double stamina, memory;

  struct Match {
    i64 length, start;
  };

  // The longest known end of the first `end` tokens, and the place behind where it was last
  Match match(i64 end) const {
    const i64 *t = tokens.data(), longest = rate.size() / 2 - 1;
    Match best = {0, 0};
    for (i64 at = end - 1; at > 0 && best.length < longest; at--) {
      if (t[at - 1] != t[end - 1]) continue;
      i64 n = 1;
      while (n < longest && n < at && t[at - 1 - n] == t[end - 1 - n]) n++;
      if (n > best.length) best = {n, at};
    }
    return best;
  }

  void append(i64 token) {
    const Match found = match(tokens.size());
    if (found.length) {
      const double seen[] = {(double)(tokens[found.start] == token), 1};
      for (i64 k = 0; k < 2; k++) {
        const volatile double past = memory * rate[2 * found.length + k];  // rounded as Python does
        rate[2 * found.length + k] = past + seen[k];
      }
    }
    tokens.push_back(token);
  }

  i64 draft(i64 most, double least, i64* out) const {
    const Match found = match(tokens.size());
    const double share = found.length ? rate[2 * found.length] / rate[2 * found.length + 1] : 0;
    double chance = share;
    i64 count = 0;
    for (i64 at = found.start, n = tokens.size(); found.length && count < most && chance >= least; at++) {
      out[count++] = at < n ? tokens[at] : out[at - n];
      chance *= std::max(share, stamina);
    }
    return count;
  }
};

extern "C" {
struct Lookups {
  i64 texts, longest;            // longest: match
  const i64 *history, *size;     // all tokens, text behind text; [texts]: how many
  const double* rate;            // [texts][longest + 1][hits, tries]
  const i64* nodes;              // [texts]
  const double* least;           // [texts]: chance that all of a draft is kept
  double stamina, memory;
  std::vector<Lookup>* made;
};

void paceline_ngram_propose(Lookups* s, i64 turns, const Turn* turn, Draft* draft) {
  if (!s->made) {
    s->made = new std::vector<Lookup>;
    const i64 *history = s->history, width = 2 * (s->longest + 1);
    for (i64 i = 0; i < s->texts; history += s->size[i++])
      s->made->push_back({{history, history + s->size[i]}, {s->rate + i * width, s->rate + (i + 1) * width}, s->stamina, s->memory});
  }
  for (i64 t = 0; t < turns; t++) {
    Lookup& lookup = (*s->made)[turn[t].place];
    for (i64 j = lookup.tokens.size() - s->size[turn[t].place]; j < turn[t].said; j++) lookup.append(turn[t].tokens[j]);
    draft[t].count = lookup.draft(std::min({s->nodes[turn[t].place], turn[t].room, turn[t].most}), s->least[turn[t].place], draft[t].token);
    for (i64 j = 0; j < draft[t].count; j++) draft[t].parent[j] = j - 1;
  }
}

void paceline_ngram_kept(Lookups*, i64, const Turn*, const Draft*, const Kept*) {}

void paceline_ngram_done(Lookups* s) {
  delete s->made;
  s->made = nullptr;
}
}
