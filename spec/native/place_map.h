// A hash map from n-grams, packed into 64 bits, to places: open addressing, for it is read in every
// step, out of cold caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hasten {

constexpr uint64_t kNowhere = ~uint64_t{0};

class PlaceMap {
 public:
  // The place of `key`, which is not 0; kNowhere without one.
  uint64_t find(uint64_t key) const { return slots_[slot_of(key)].place; }

  void set(uint64_t key, uint64_t place) {
    Slot& slot = slots_[slot_of(key)];
    if (slot.key == 0) {
      slot = {key, place};
      if (2 * ++num_keys_ > slots_.size()) grow();
    } else {
      slot.place = place;
    }
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint64_t place = kNowhere;
  };

  // Where `key` stands, or is to stand.
  size_t slot_of(uint64_t key) const {
    size_t at = static_cast<size_t>(key * 0x9E3779B97F4A7C15u >> 32) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != 0) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void grow() {
    std::vector<Slot> before(2 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.key != 0) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  size_t num_keys_ = 0;
};

}  // namespace hasten
