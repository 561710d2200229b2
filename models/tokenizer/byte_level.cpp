#include "models/tokenizer/byte_level.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

#include "models/error.h"
#include "models/tokenizer/utf8.h"

namespace quern {
namespace {

constexpr std::string_view merges_key = "tokenizer.ggml.merges";
constexpr std::string_view pre_key = "tokenizer.ggml.pre";

/// GPT-2's alphabet: printable Latin-1 bytes are themselves, the others follow from U+0100 on in
/// ascending order.
struct ByteAlphabet {
  std::array<std::string, 256> text;
  std::array<int, 0x144> byte{};  ///< By code point, -1 where there is none.

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned value = 0; value < 256; ++value) {
      const bool printable =
          (value >= 0x21 && value <= 0x7E) || (value >= 0xA1 && value <= 0xAC) || value >= 0xAE;
      const char32_t code = printable ? static_cast<char32_t>(value) : next++;
      utf8::append(text[value], code);
      byte[code] = static_cast<int>(value);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet table;
  return table;
}

const PreTokenizerRow& row_of(const Vocabulary& vocabulary) {
  const PreTokenizerRow* row = find_pre_tokenizer(vocabulary.pre);
  if (row == nullptr) {
    throw Error(ErrorKind::bad_model, pre_key,
                fmt::format("pre-tokeniser \"{}\" is not known", vocabulary.pre),
                "use a model of a supported family");
  }
  return *row;
}

Error merge_error(size_t rank, std::string_view reason) {
  return {ErrorKind::bad_model, merges_key, fmt::format("entry {} {}", rank, reason),
          "convert the model again"};
}

size_t hash(TokenId left, TokenId right) {
  const uint64_t key = (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 20);
}

}  // namespace

struct ByteLevelEncoder::Symbol {
  TokenId id;
  uint32_t previous;
  uint32_t next;
};

/// A piece in the making: a doubly linked list of symbols over an array, and the candidates.
struct ByteLevelEncoder::Workspace {
  static constexpr uint32_t none = 0xFFFFFFFFu;
  struct Candidate {
    uint32_t rank;
    uint32_t left;
    TokenId left_id;
    TokenId right_id;
    TokenId result;

    bool operator<(const Candidate& other) const {
      // The standard heap keeps the largest in front.
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::string mapped;
};

ByteLevelEncoder::ByteLevelEncoder(const gguf::Metadata& metadata, const Vocabulary& vocabulary)
    : row_(&row_of(vocabulary)), pre_tokenizer_(*row_) {
  for (size_t value = 0; value < 256; ++value) {
    const auto id = vocabulary.find(alphabet().text[value]);
    byte_ids_[value] = id && vocabulary.is_text(*id) ? *id : -1;
  }
  read_merges(metadata, vocabulary);
}

void ByteLevelEncoder::read_merges(const gguf::Metadata& metadata, const Vocabulary& vocabulary) {
  const std::vector<std::string>& merges = metadata.get_strings(merges_key);
  if (merges.size() > (size_t{1} << 30)) {
    throw Error(ErrorKind::bad_model, merges_key, "it has more merges than any vocabulary needs",
                "convert the model again");
  }
  merges_.resize(std::bit_ceil(merges.size() * 2 + 2));
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    // The byte alphabet has no space, so that the one space separates.
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      throw merge_error(rank, "is not two tokens with a space between them");
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    const auto result = vocabulary.find(joined);
    if (!left_id || !right_id || !result) {
      throw merge_error(rank, "names a token that the vocabulary does not have");
    }
    insert({*left_id, *right_id, static_cast<uint32_t>(rank), *result});
  }
}

void ByteLevelEncoder::insert(const Merge& merge) {
  const size_t mask = merges_.size() - 1;
  size_t slot = hash(merge.left, merge.right) & mask;
  while (merges_[slot].left >= 0) {
    // A merge that is listed twice keeps its first, lower rank.
    if (merges_[slot].left == merge.left && merges_[slot].right == merge.right) return;
    slot = (slot + 1) & mask;
  }
  merges_[slot] = merge;
}

const ByteLevelEncoder::Merge* ByteLevelEncoder::find(TokenId left, TokenId right) const {
  const size_t mask = merges_.size() - 1;
  size_t slot = hash(left, right) & mask;
  while (merges_[slot].left >= 0) {
    if (merges_[slot].left == left && merges_[slot].right == right) return &merges_[slot];
    slot = (slot + 1) & mask;
  }
  return nullptr;
}

void ByteLevelEncoder::encode(std::string_view text, const Vocabulary& vocabulary,
                              std::vector<TokenId>& ids) const {
  Workspace workspace;
  pre_tokenizer_.split(
      text, [&](std::string_view piece) { encode_piece(piece, vocabulary, workspace, ids); });
}

void ByteLevelEncoder::encode_piece(std::string_view piece, const Vocabulary& vocabulary,
                                    Workspace& workspace, std::vector<TokenId>& ids) const {
  if (row_->ignore_merges) {
    workspace.mapped.clear();
    for (const char byte : piece) {
      workspace.mapped += alphabet().text[static_cast<unsigned char>(byte)];
    }
    const auto whole = vocabulary.find(workspace.mapped);
    if (whole && vocabulary.is_text(*whole)) {
      ids.push_back(*whole);
      return;
    }
  }

  lay_out(piece, workspace.symbols);
  const auto& symbols = workspace.symbols;
  if (symbols.empty()) return;
  merge(workspace);
  for (uint32_t at = 0; at != Workspace::none; at = symbols[at].next) {
    ids.push_back(symbols[at].id);
  }
}

void ByteLevelEncoder::lay_out(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto append = [&symbols](TokenId id) {
    const auto at = static_cast<uint32_t>(symbols.size());
    symbols.push_back({id, at == 0 ? Workspace::none : at - 1, at + 1});
  };
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id >= 0) append(id);
  }
  if (!symbols.empty()) symbols.back().next = Workspace::none;
}

void ByteLevelEncoder::merge(Workspace& workspace) const {
  using Candidate = Workspace::Candidate;
  auto& symbols = workspace.symbols;
  auto& heap = workspace.heap;
  heap.clear();
  const auto consider = [&](uint32_t left) {
    const uint32_t right = symbols[left].next;
    if (right == Workspace::none) return;
    const Merge* merge = find(symbols[left].id, symbols[right].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, left, merge->left, merge->right, merge->result});
    std::push_heap(heap.begin(), heap.end());
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) consider(i);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    // Candidates are not withdrawn when a neighbour merges; a stale one no longer fits. A symbol
    // that was swallowed has id -1.
    Symbol& left = symbols[best.left];
    if (left.id != best.left_id || left.next == Workspace::none) continue;
    Symbol& right = symbols[left.next];
    if (right.id != best.right_id) continue;
    left.id = best.result;
    right.id = -1;
    left.next = right.next;
    if (left.next != Workspace::none) symbols[left.next].previous = best.left;
    if (left.previous != Workspace::none) consider(left.previous);
    consider(best.left);
  }
}

std::string byte_level_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const utf8::Step step = utf8::next(text);
    const auto& table = alphabet().byte;
    if (step.kind == utf8::Step::Kind::character && step.value < table.size() &&
        table[step.value] >= 0) {
      bytes += static_cast<char>(table[step.value]);
    } else {
      bytes += text.substr(0, step.length);
    }
    text.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace quern
