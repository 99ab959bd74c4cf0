// Several proposers in one tree within a run; draft/merge_runs.py and draft/records.py are the slow twin and say which part is asked.
#pragma once

#include "proposer.h"

struct Sizes {  // by the bit length of a number of nodes
  double kept[8], rounds[8];

  static i64 of(i64 nodes) { return nodes ? 64 - __builtin_clzll(nodes) : 0; }
  void count(i64 nodes, i64 brought, double memory) {
    const i64 size = of(nodes);
    const volatile double k = memory * kept[size], r = memory * rounds[size];  // rounded as Python does
    kept[size] = k + brought, rounds[size] = r + 1;
  }
};

struct Record {
  Sizes drafted, asked, used;

  void count(i64 most, i64 nodes, i64 kept, double memory) {
    asked.count(most, kept, memory);
    used.count(most, nodes, memory);
    if (nodes) drafted.count(nodes, kept, memory);
  }
  double expected(i64 nodes) const {
    const i64 size = Sizes::of(nodes);
    return nodes ? drafted.kept[size] / (drafted.rounds[size] + 1.0) : 0;
  }
  double promised(i64 most, double row) const {
    for (; most; most /= 2) {
      const i64 size = Sizes::of(most);
      const volatile double price = row * used.kept[size];
      if (asked.rounds[size]) return (asked.kept[size] - price) / asked.rounds[size];
    }
    return INFINITY;
  }
};

struct Asking {  // one part, in one round: whom it drafts for, and what
  std::vector<Turn> turns;
  std::vector<i64> whose;     // turn of the merged proposer
  std::vector<double> beside; // nodes expected of the parts before it
  std::vector<Draft> drafts;
  std::vector<std::vector<i64>> nodes;  // of each of its nodes the one of the merged tree
};

struct Asks {
  std::vector<Asking> parts;
  std::vector<i64> made;  // [texts]: rounds so far
};

extern "C" {
struct Merged {
  i64 parts;
  const Proposer* part;       // in the order in which they are asked
  const i64 *joined, *models; // [parts]: in the order in which their nodes are laid out; does it run a model?
  const i64* nodes;           // [texts]
  const double* row;          // [texts]: what a row has to bring
  const i64* round;           // [texts]: rounds before the run
  Record* records;            // [parts]
  i64 *missed, *beaten;       // [parts]; [texts][parts]
  i64 *told, *tellings;       // [texts][most_told][asked, depth, nodes that had rows, kept]; [texts]
  i64 texts, most_told, always, retry, broken, tell;
  double memory;
  Asks* made;

  i64 most(const Turn& it) const { return std::min({nodes[it.place], it.room, it.most}); }
  i64 now(i64 place) const { return round[place] + made->made[place]; }
};

void paceline_merged_propose(Merged* s, i64 turns, const Turn* turn, Draft* drafts) {
  if (!s->made) s->made = new Asks{{}, std::vector<i64>(s->texts)};
  s->made->parts.assign(s->parts, {});
  std::vector<i64> left(turns);
  std::vector<double> expected(turns);
  for (i64 t = 0; t < turns; t++) left[t] = s->most(turn[t]);
  for (i64 part = 0; part < s->parts; part++) {
    Asking& it = s->made->parts[part];
    const Record& record = s->records[part];
    for (i64 t = 0; t < turns; t++) {
      const i64 place = turn[t].place, most = s->most(turn[t]);
      const i64 waited = s->now(place) - s->beaten[place * s->parts + part];
      const double brings = s->missed[part] >= s->broken ? 0 : record.promised(most, s->row[place]);
      if (part && !(expected[t] < brings) && waited < s->retry) continue;
      it.turns.push_back(turn[t]), it.whose.push_back(t), it.beside.push_back(expected[t]);
      it.turns.back().most = std::max(left[t], most / 2);
    }
    if (it.turns.empty()) continue;
    it.drafts.resize(it.turns.size()), it.nodes.resize(it.turns.size());
    for (Draft& draft : it.drafts) draft.count = 0;
    s->part[part].propose(s->part[part].state, it.turns.size(), it.turns.data(), it.drafts.data());
    for (size_t i = 0; i < it.turns.size(); i++) {
      const i64 t = it.whose[i];
      left[t] -= it.drafts[i].count;
      expected[t] = std::max(expected[t], record.expected(it.drafts[i].count));
    }
  }
  std::vector<std::vector<std::pair<i64, i64>>> trees(turns);  // parent and token of each node
  for (i64 j = 0; j < s->parts; j++) {
    Asking& it = s->made->parts[s->joined[j]];
    for (size_t i = 0; i < it.turns.size(); i++) {
      auto& tree = trees[it.whose[i]];
      for (i64 n = 0; n < it.drafts[i].count; n++) {
        const i64 above = it.drafts[i].parent[n];
        const std::pair<i64, i64> node(above < 0 ? -1 : it.nodes[i][above], it.drafts[i].token[n]);
        const auto at = std::find(tree.begin(), tree.end(), node);
        it.nodes[i].push_back(at - tree.begin());
        if (at == tree.end()) tree.push_back(node);
      }
    }
  }
  for (i64 t = 0; t < turns; t++) {
    Draft& draft = drafts[t];
    draft.count = std::min<i64>(trees[t].size(), s->most(turn[t]));
    for (i64 n = 0; n < draft.count; n++) draft.parent[n] = trees[t][n].first, draft.token[n] = trees[t][n].second;
  }
}

void paceline_merged_kept(Merged* s, i64 turns, const Turn* turn, const Draft*, const Kept* kept) {
  for (i64 part = 0; part < s->parts; part++) {
    Asking& it = s->made->parts[part];
    std::vector<Kept> own(it.turns.size());
    for (size_t i = 0; i < it.turns.size(); i++) {
      const Kept& path = kept[it.whose[i]];
      const i64 place = it.turns[i].place, asked = it.turns[i].most, drafted = it.drafts[i].count;
      const auto& nodes = it.nodes[i];
      own[i].count = 0;
      for (i64 n = 0; n < path.count; n++) {
        const auto at = std::find(nodes.begin(), nodes.end(), path.node[n]);
        if (at != nodes.end()) own[i].node[own[i].count++] = at - nodes.begin();
      }
      const i64 count = own[i].count, most = s->most(turn[it.whose[i]]);
      s->records[part].count(asked, drafted, count, s->memory);
      if (drafted || s->models[part]) s->missed[part] = count ? 0 : s->missed[part] + 1;
      if ((double)count <= it.beside[i]) s->beaten[place * s->parts + part] = s->now(place);
      if (part != s->always || s->now(place) % s->tell || s->tellings[place] == s->most_told) continue;
      const i64 had = std::count_if(nodes.begin(), nodes.end(), [&](i64 node) { return node < most; });
      i64* to = s->told + 4 * (place * s->most_told + s->tellings[place]++);
      to[0] = asked, to[1] = had == drafted ? it.turns[i].room : had, to[2] = had, to[3] = count;
    }
    if (!own.empty()) s->part[part].kept(s->part[part].state, own.size(), it.turns.data(), it.drafts.data(), own.data());
  }
  for (i64 t = 0; t < turns; t++) s->made->made[turn[t].place]++;
}

void paceline_merged_done(Merged* s) {
  for (i64 part = 0; part < s->parts; part++)
    if (s->part[part].done) s->part[part].done(s->part[part].state);
  delete s->made;
  s->made = nullptr;
}
}
