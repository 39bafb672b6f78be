// The limits of this machine, measured: what a program's speed is held against.
#pragma once

#include <cstddef>
#include <string>

namespace hasten {

// The best of several runs on all threads; `num_bytes` should exceed every cache. Both throw
// std::invalid_argument.
double bytes_per_second(const std::string& isa, int num_threads, size_t num_bytes);

// Multiply-adds of bytes, in registers.
double multiply_adds_per_second(const std::string& isa, int num_threads);

}  // namespace hasten
