#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

#include "models/error.h"
#include "runtime/engine_impl.h"
#include "runtime/state_image.h"

namespace quern {

struct Session::Impl {
  explicit Impl(std::shared_ptr<Engine> owner);

  const Plan& plan() const { return engine->plan(); }
  void require_sound() const;
  void check_tokens(std::span<const TokenId> tokens, uint32_t start) const;
  void check_request(const SelectionRequest& request) const;
  void check_rows(std::span<const uint32_t> rows, size_t n_tokens) const;
  using OnRow = std::function<void(uint32_t row, std::span<const float> logits)>;
  /// With a selection the last row alone may be asked for, and `on_row` is not called.
  void run(std::span<const TokenId> tokens, std::span<const uint32_t> rows, uint32_t chunk,
           const OnRow& on_row, const SelectionRequest* selection);
  void run_or_latch(std::span<const TokenId> tokens, std::span<const uint32_t> rows, uint32_t chunk,
                    const OnRow& on_row, const SelectionRequest* selection = nullptr);
  void collect_launches();

  std::shared_ptr<Engine> engine;
  std::unique_ptr<SessionMemory> memory;
  uint32_t position = 0;
  bool failed = false;
  std::string failure;
  std::vector<std::pair<std::string, uint32_t>> launches;
  Progress progress;
};

Session::Impl::Impl(std::shared_ptr<Engine> owner)
    : engine(std::move(owner)), memory(engine->impl_->backend->new_session()) {}

void Session::Impl::require_sound() const {
  if (!failed) return;
  throw Error(ErrorKind::failed, "session", fmt::format("an earlier call failed ({})", failure),
              "reset it and feed the tokens again");
}

void Session::Impl::check_tokens(std::span<const TokenId> tokens, uint32_t start) const {
  if (tokens.empty()) {
    throw Error(ErrorKind::usage, "tokens", "the list is empty", "give at least one token");
  }
  if (start != position) {
    throw Error(ErrorKind::usage, fmt::format("start position {}", start),
                fmt::format("the session stands at {}", position),
                "feed from where it stands, or reset it");
  }
  const uint32_t context = plan().options.context;
  if (tokens.size() > context - position) {
    throw Error(ErrorKind::usage, fmt::format("{} tokens at position {}", tokens.size(), position),
                fmt::format("the context has room for {}", context - position),
                "give fewer tokens or a larger --ctx");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= plan().vocabulary) {
      throw Error(ErrorKind::usage, fmt::format("token {} (number {})", tokens[i], i),
                  fmt::format("the vocabulary has ids from 0 to {}", plan().vocabulary - 1),
                  "check the token ids");
    }
  }
}

void Session::Impl::check_rows(std::span<const uint32_t> rows, size_t n_tokens) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= n_tokens || (i > 0 && rows[i] <= rows[i - 1])) {
      throw Error(ErrorKind::usage, fmt::format("row {}", rows[i]),
                  fmt::format("rows must ascend and lie below the {} tokens", n_tokens),
                  "sort them and give each once");
    }
  }
}

void Session::Impl::collect_launches() {
  launches.clear();
  const auto& names = engine->impl_->backend->launch_names();
  const std::vector<uint32_t>& counts = memory->launches();
  for (size_t i = 0; i < names.size(); ++i) {
    if (counts[i] > 0) launches.emplace_back(names[i], counts[i]);
  }
  std::sort(launches.begin(), launches.end());
}

void Session::Impl::check_request(const SelectionRequest& request) const {
  const auto refuse = [](const std::string& thing, const std::string& reason) {
    throw Error(ErrorKind::usage, thing, reason, "feed the tokens and take their logits");
  };
  const SelectionLimits limits = engine->impl_->backend->selection_limits();
  if (limits.candidates == 0) refuse("candidates", "the device gives logits alone");
  if (request.count == 0 || request.count > limits.candidates) {
    refuse(fmt::format("{} candidates", request.count),
           fmt::format("the device selects 1 to {}", limits.candidates));
  }
  if (request.seen.size() > limits.seen) {
    refuse(fmt::format("{} seen tokens", request.seen.size()),
           fmt::format("the device takes {}", limits.seen));
  }
  for (const TokenId id : request.seen) {
    if (id < 0 || static_cast<uint32_t>(id) >= plan().vocabulary) {
      refuse(fmt::format("seen token {}", id), "the vocabulary does not have it");
    }
  }
}

void Session::Impl::run_or_latch(std::span<const TokenId> tokens, std::span<const uint32_t> rows,
                                 uint32_t chunk, const OnRow& on_row,
                                 const SelectionRequest* selection) {
  try {
    run(tokens, rows, chunk, on_row, selection);
  } catch (const std::exception& error) {
    failed = true;
    failure = error.what();
    collect_launches();
    throw;
  }
  collect_launches();
}

void Session::Impl::run(std::span<const TokenId> tokens, std::span<const uint32_t> rows,
                        uint32_t chunk, const OnRow& on_row, const SelectionRequest* selection) {
  const uint32_t size = chunk == 0 ? plan().options.chunk : std::min(chunk, plan().options.chunk);
  memory->forget_launches();
  std::vector<int32_t> outputs;
  size_t row = 0;
  bool cut = false;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = std::min<size_t>(tokens.size(), begin + size);
    // A chunk gives at most max_outputs rows: it ends where one more would be wanted.
    if (row + plan().max_outputs < rows.size() && rows[row + plan().max_outputs] < end) {
      end = rows[row + plan().max_outputs];
      cut = true;
    }
    outputs.clear();
    for (size_t r = row; r < rows.size() && rows[r] < end; ++r) {
      outputs.push_back(static_cast<int32_t>(rows[r] - begin));
    }
    memory->run({.tokens = tokens.subspan(begin, end - begin),
                 .outputs = outputs,
                 .start_position = position,
                 .selection = outputs.empty() ? nullptr : selection});
    position += static_cast<uint32_t>(end - begin);
    const float* values = selection == nullptr ? memory->logits() : nullptr;
    for (size_t i = 0; i < outputs.size() && values != nullptr; ++i, ++row) {
      on_row(rows[row], std::span(values + i * plan().vocabulary, plan().vocabulary));
    }
    begin = end;
    if (progress) progress("prefill", begin, tokens.size());
  }
  if (cut) {
    spdlog::debug("chunks were cut: the plan gives logits of {} rows of a chunk",
                  plan().max_outputs);
  }
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

std::unique_ptr<Session> Engine::new_session() {
  return std::unique_ptr<Session>(new Session(std::make_unique<Session::Impl>(shared_from_this())));
}

uint32_t Session::position() const {
  return impl_->position;
}
uint32_t Session::capacity() const {
  return impl_->plan().options.context;
}

void Session::feed(std::span<const TokenId> tokens, uint32_t start, std::span<const uint32_t> rows,
                   uint32_t chunk,
                   const std::function<void(uint32_t row, std::span<const float> logits)>& on_row) {
  impl_->require_sound();
  impl_->check_tokens(tokens, start);
  impl_->check_rows(rows, tokens.size());
  impl_->run_or_latch(tokens, rows, chunk, on_row);
}

std::vector<float> Session::feed(std::span<const TokenId> tokens, uint32_t start, OutputRows rows,
                                 uint32_t chunk) {
  std::vector<uint32_t> wanted;
  if (rows == OutputRows::all) {
    const uint32_t largest =
        chunk == 0 ? impl_->plan().options.chunk : std::min(chunk, impl_->plan().options.chunk);
    if (std::min<size_t>(largest, tokens.size()) > impl_->plan().max_outputs) {
      throw Error(ErrorKind::usage, "logits of every token",
                  fmt::format("the plan gives them for {} of a chunk", impl_->plan().max_outputs),
                  "make the plan with all_logits");
    }
    wanted.resize(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0U);
  } else if (rows == OutputRows::last && !tokens.empty()) {
    wanted.push_back(static_cast<uint32_t>(tokens.size() - 1));
  }
  std::vector<float> logits;
  logits.reserve(wanted.size() * impl_->plan().vocabulary);
  feed(tokens, start, wanted, chunk, [&logits](uint32_t, std::span<const float> row) {
    logits.insert(logits.end(), row.begin(), row.end());
  });
  return logits;
}

SelectionLimits Session::selection_limits() const {
  return impl_->engine->impl_->backend->selection_limits();
}

Candidates Session::select(std::span<const TokenId> tokens, uint32_t start,
                           const SelectionRequest& request, uint32_t chunk) {
  impl_->require_sound();
  impl_->check_tokens(tokens, start);
  impl_->check_request(request);
  const auto last = static_cast<uint32_t>(tokens.size() - 1);
  impl_->run_or_latch(tokens, std::span(&last, 1), chunk, {}, &request);
  return impl_->memory->candidates();
}

void Session::reset() {
  impl_->memory->clear();
  impl_->position = 0;
  impl_->failed = false;
  impl_->failure.clear();
}

std::unique_ptr<Session> Session::branch() const {
  impl_->require_sound();
  auto other = impl_->engine->new_session();
  other->impl_->memory->copy_from(*impl_->memory);
  other->impl_->position = impl_->position;
  return other;
}

std::vector<std::byte> Session::save() const {
  impl_->require_sound();
  return impl_->memory->save(impl_->engine->impl_->state_fingerprint, impl_->position);
}

void Session::restore(std::span<const std::byte> image) {
  impl_->require_sound();
  const StateImage decoded = decode_state(image, impl_->engine->impl_->state_fingerprint,
                                          impl_->plan().state_bytes, capacity());
  try {
    impl_->memory->restore(decoded);
  } catch (const std::exception& error) {
    impl_->failed = true;
    impl_->failure = error.what();
    throw;
  }
  impl_->position = decoded.position;
}

const std::vector<std::pair<std::string, uint32_t>>& Session::last_launches() const {
  return impl_->launches;
}

void Session::set_progress(Progress progress) {
  impl_->progress = std::move(progress);
}

}  // namespace quern
