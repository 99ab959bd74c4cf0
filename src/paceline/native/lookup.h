// Prompt lookup within a run; draft/ngram.py is the slow twin and says what is looked for. Included by run.h.
#pragma once

#include "base.h"

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

  void draft(i64 most, double worth, std::vector<i64>& out) const {
    const Match found = match(tokens.size());
    const double share = found.length ? rate[2 * found.length] / rate[2 * found.length + 1] : 0;
    double chance = share;
    out.clear();
    for (i64 at = found.start, n = tokens.size(); found.length && (i64)out.size() < most && chance >= worth; at++) {
      out.push_back(at < n ? tokens[at] : out[at - n]);
      chance *= std::max(share, stamina);
    }
  }
};
