// Drafting passes one after another, and the rows that a target's steps leave for them.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "bf16.h"
#include "program.h"

namespace hasten {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// What is read here before the program checks the step that is made of it.
void check_rows(const Step& step, const DraftRows& rows) {
  const int num_requests = rows.num_requests;
  require(rows.query_starts[0] == 0 && rows.query_starts[num_requests] == rows.num_tokens,
          "query_starts does not run from 0 to the number of tokens");
  for (int r = 0; r < num_requests; ++r) {
    require(rows.query_starts[r] < rows.query_starts[r + 1], "query_starts does not ascend");
    require(rows.starts[r] >= 0, "a request starts before its first token");
    for (int g = 0; g < step.num_groups; ++g) {
      require(rows.table_rows[r] >= 0 && rows.table_rows[r] < step.groups[g].num_table_rows,
              "table_rows outside the tables");
    }
  }
  for (int l = 0; l < rows.num_guesses; ++l) {
    require(rows.guessing[l] >= 0 && rows.guessing[l] < num_requests &&
                (l == 0 || rows.guessing[l - 1] < rows.guessing[l]),
            "guesses of requests that there are not, or out of order");
  }
}

}  // namespace

int Program::run_chain(Step step, const Chain& chain, const DraftRows& rows) {
  require(rows.num_guesses <= capacity_.max_logit_rows, "more guesses than logit rows");
  check_rows(step, rows);
  lay_out(step, chain, rows);
  if (chain.features != nullptr) set_features(step, chain, rows);
  for (int pass = 1;; ++pass) {
    run(step);
    bool goes_on = rows.num_guesses > 0 && pass < rows.num_passes;
    for (int l = 0; l < rows.num_guesses; ++l) {
      int32_t& chosen = step.out_token_ids[l];
      if (!chain.translation.empty()) chosen = chain.translation[static_cast<size_t>(chosen)];
      float& confidence = step.out_logprobs[l];
      confidence = std::exp(confidence);
      if (step.sampling.temperature[l] > 0.0f) {
        confidence = chain.least_shared + (1.0f - chain.least_shared) * confidence;
      }
      rows.survivals[l] *= confidence;
      goes_on = goes_on && rows.survivals[l] >= rows.least_survival;
    }
    if (!goes_on) return pass;
    follow(step, chain);
  }
}

int32_t Program::slot_of(const Step& step, int group_id, int table_row, int position) const {
  const GroupTables& tables = step.groups[group_id];
  const int block_size = kv_[static_cast<size_t>(group_id)].block_size, block = position / block_size;
  require(block < tables.table_width, "a chain leads past a block table");
  const int32_t* row = tables.block_tables +
                       static_cast<size_t>(table_row) * static_cast<size_t>(tables.table_width);
  return row[block] * block_size + position % block_size;
}

void Program::lay_out(Step& step, const Chain& chain, const DraftRows& rows) {
  const auto num_tokens = static_cast<size_t>(rows.num_tokens);
  const auto num_requests = static_cast<size_t>(rows.num_requests);
  const auto num_guesses = static_cast<size_t>(rows.num_guesses);
  PassRows& pass = pass_;
  pass.token_ids.assign(rows.token_ids, rows.token_ids + num_tokens);
  pass.query_starts.assign(rows.query_starts, rows.query_starts + num_requests + 1);
  pass.table_rows.assign(rows.table_rows, rows.table_rows + num_requests);
  pass.positions.resize(num_tokens);
  pass.seq_lens.resize(num_requests);
  for (int g = 0; g < step.num_groups; ++g) pass.slots[g].assign(num_tokens, 0);
  for (int r = 0; r < rows.num_requests; ++r) {
    const int begin = rows.query_starts[r], end = rows.query_starts[r + 1];
    for (int t = begin; t < end; ++t) {
      const int position = rows.starts[r] + t - begin;
      pass.positions[static_cast<size_t>(t)] = position;
      for (int g = chain.first_group; g < chain.end_group; ++g) {
        pass.slots[g][static_cast<size_t>(t)] = slot_of(step, g, rows.table_rows[r], position);
      }
    }
    pass.seq_lens[static_cast<size_t>(r)] = rows.starts[r] + end - begin;
  }
  pass.logit_rows.resize(num_guesses);
  pass.next_positions.resize(num_guesses);
  for (size_t l = 0; l < num_guesses; ++l) {
    const int request = rows.guessing[l];
    pass.logit_rows[l] = rows.query_starts[request + 1] - 1;
    pass.next_positions[l] = pass.seq_lens[static_cast<size_t>(request)];
  }
  if (rows.is_greedy) {
    pass.zeros.resize(num_guesses, 0);
    pass.none.resize(num_guesses, -1);
    pass.off.resize(num_guesses, 0.0f);
    pass.ones.resize(num_guesses, 1.0f);
    pass.seeds.resize(num_guesses, 0);
    SamplingRows& to = step.sampling;
    to.temperature = to.min_p = to.frequency_penalty = to.presence_penalty = pass.off.data();
    to.top_p = to.repetition_penalty = pass.ones.data();
    to.top_k = to.sample_idx = to.num_logprobs = pass.zeros.data();
    to.target_ids = pass.none.data();
    to.seeds = pass.seeds.data();
  }
  step.num_logit_rows = rows.num_guesses;
  point_at(step, rows.num_tokens, rows.num_requests);
}

void Program::point_at(Step& step, int num_tokens, int num_requests) {
  step.num_tokens = num_tokens;
  step.num_requests = num_requests;
  step.token_ids = pass_.token_ids.data();
  step.positions = pass_.positions.data();
  step.query_starts = pass_.query_starts.data();
  step.seq_lens = pass_.seq_lens.data();
  step.table_rows = pass_.table_rows.data();
  step.logit_rows = pass_.logit_rows.data();
  step.sampling.positions = pass_.next_positions.data();
  for (int g = 0; g < step.num_groups; ++g) {
    step.groups[g].slot_mapping = pass_.slots[g].data();
    step.groups[g].num_copies = 0;
  }
}

void Program::set_features(const Step& step, const Chain& chain, const DraftRows& rows) {
  require(rows.num_tokens <= capacity_.max_tokens, "more tokens than the program takes");
  const auto width = static_cast<size_t>(chain.features->width);
  const size_t hidden = static_cast<size_t>(rows.num_tokens) * static_cast<size_t>(chain.hidden->width);
  if (rows.hidden != nullptr) {
    std::copy_n(rows.hidden, hidden, chain.hidden->plain);
    std::fill_n(chain.features->plain, static_cast<size_t>(rows.num_tokens) * width, 0.0f);
    return;
  }
  std::fill_n(chain.hidden->plain, hidden, 0.0f);
  for (int r = 0; r < rows.num_requests; ++r) {
    for (int t = rows.query_starts[r]; t < rows.query_starts[r + 1]; ++t) {
      float* to = chain.features->plain + static_cast<size_t>(t) * width;
      const int before = step.positions[t] - 1;
      if (before < 0) {
        std::fill_n(to, width, 0.0f);
        continue;
      }
      const int slot = slot_of(step, chain.known.group_id, step.table_rows[r], before);
      require(slot >= 0 && slot < chain.known.num_slots, "a slot of which nothing is kept");
      std::transform(chain.known.row(slot), chain.known.row(slot) + width, to, widen_bf16);
    }
  }
}

// Makes of a pass that was computed the one that follows on it: a row is read before it is written.
void Program::follow(Step& step, const Chain& chain) {
  const int num_rows = step.num_logit_rows;
  const auto size = static_cast<size_t>(num_rows);
  PassRows& pass = pass_;
  for (int l = 0, r = 0; l < num_rows; ++l) {
    while (step.query_starts[r + 1] <= step.logit_rows[l]) ++r;
    const auto i = static_cast<size_t>(l);
    const int position = pass.next_positions[i], table_row = pass.table_rows[static_cast<size_t>(r)];
    for (int g = chain.first_group; g < chain.end_group; ++g) {
      pass.slots[g][i] = slot_of(step, g, table_row, position);
    }
    pass.token_ids[i] = step.out_token_ids[l];
    pass.positions[i] = position;
    pass.next_positions[i] = pass.seq_lens[i] = position + 1;
    pass.table_rows[i] = table_row;
    pass.logit_rows[i] = l;
  }
  std::iota(pass.query_starts.begin(), pass.query_starts.begin() + num_rows + 1, 0);
  point_at(step, num_rows, num_rows);
  step.out_token_ids += num_rows;
  step.out_logprobs += num_rows;
  if (chain.features != nullptr) {
    std::copy_n(chain.left->plain, size * static_cast<size_t>(chain.left->width), chain.hidden->plain);
    std::fill_n(chain.features->plain, size * static_cast<size_t>(chain.features->width), 0.0f);
  }
}

void Program::store_taps(std::vector<const Buffer*> taps, const SlotRows& rows) {
  int width = 0;
  for (const Buffer* tap : taps) width += tap->width;
  require(width == rows.width, "what is stored has another width");
  stored_taps_ = std::move(taps);
  stored_ = rows;
}

void Program::copy_stored(const Step& step) const {
  if (stored_taps_.empty()) return;
  const GroupTables& tables = step.groups[stored_.group_id];
  const int block_size = kv_[static_cast<size_t>(stored_.group_id)].block_size;
  const size_t size = static_cast<size_t>(block_size) * static_cast<size_t>(stored_.width);
  for (int c = 0; c < tables.num_copies; ++c) {
    const int source = tables.block_copies[2 * c], destination = tables.block_copies[2 * c + 1];
    if (source != destination) {
      std::copy_n(stored_.row(source * block_size), size, stored_.row(destination * block_size));
    }
  }
}

void Program::store_rows(const Step& step) const {
  if (stored_taps_.empty()) return;
  const GroupTables& tables = step.groups[stored_.group_id];
  for (int t = 0; t < step.num_tokens; ++t) {
    uint16_t* to = stored_.row(tables.slot_mapping[t]);
    for (const Buffer* tap : stored_taps_) {
      const float* from = tap->plain + static_cast<size_t>(t) * static_cast<size_t>(tap->width);
      to = std::transform(from, from + tap->width, to, round_to_bf16);
    }
  }
}

}  // namespace hasten
