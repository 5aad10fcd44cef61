// What the ranks of a meeting leave in the store for each other, and its bytes (rendezvous.h has
// the grammar).
//
// Plain values. Bytes from the store are checked here: an error names the entry and whose it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/session_messages.h"

namespace cgx::client {

using Bytes = std::vector<std::byte>;
using Incarnation = std::array<std::byte, 16>;
using ListId = std::array<std::byte, 16>;

struct Claim {  // to a rank's number
  Incarnation holder{}, refused{};
};

enum class Verdict : uint8_t { kSettled = 0, kReadAgain = 1, kGaveUp = 2 };

struct Word {  // of rank 0 about a list
  Verdict verdict = Verdict::kReadAgain;
  Status why;                         // it gave up
  std::vector<wire::Member> members;  // of a settled list
  wire::JobKey job_key{};
};

struct List {
  ListId id{};
  bool store_answers = false;             // a get of what is not there says so at once
  std::vector<Incarnation> incarnations;  // by rank
};

struct Answer {
  uint32_t ranks = 0;
  Incarnation incarnation{};
  wire::Member member;
};

struct Loss {  // of a rank that had come
  Incarnation teller{};
  std::string text;
};

// Whose entry it is, and where it was found.
struct Source {
  uint32_t rank = 0;
  std::string key;
};

std::string rank_text(uint32_t rank);

Bytes encode(const Claim& claim);
Bytes encode(const List& list);
Bytes encode(const Answer& answer);
Bytes encode(const Word& word);
Bytes encode(const Loss& loss);

Result<Claim> decode_claim(const Source& source, std::span<const std::byte> value);
Result<List> decode_list(const Source& source, std::span<const std::byte> value);
Result<Answer> decode_answer(const Source& source, std::span<const std::byte> value);
// `ranks`: how many the meeting has.
Result<Word> decode_word(const Source& source, std::span<const std::byte> value, uint32_t ranks);
Result<Loss> decode_loss(const Source& source, std::span<const std::byte> value);

}  // namespace cgx::client
