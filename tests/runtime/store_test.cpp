#include "runtime/store/kernel_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "models/error.h"
#include "runtime/store/entry_file.h"
#include "tests/runtime/store_support.h"
#include "tests/support/temporary_folder.h"

namespace quern::test {
namespace {

namespace fs = std::filesystem;

fs::path only_entry(const fs::path& directory) {
  fs::path found;
  for (const auto& file : fs::directory_iterator(directory / "kernels")) {
    if (file.path().extension() == ".kernel") {
      EXPECT_TRUE(found.empty());
      found = file.path();
    }
  }
  return found;
}

TEST(KernelStore, an_entry_comes_back_as_it_went_in) {
  const auto spec = fake_spec(64);
  const CompiledKernel kernel = fake_kernel(spec);
  const auto image = encode_entry(kernel, spec);
  const CompiledKernel back = decode_entry(image, "x");
  EXPECT_EQ(back.key.fields, kernel.key.fields);
  EXPECT_EQ(back.symbol, kernel.symbol);
  EXPECT_EQ(back.code, kernel.code);
  EXPECT_EQ(back.scratch_bytes, kernel.scratch_bytes);
  ASSERT_EQ(back.record.size(), 2U);
  EXPECT_EQ(back.record[0], kernel.record[0]);
  // A compiler's log that is no UTF-8 is kept readable, not refused.
  EXPECT_EQ(back.record[1].second.find("nothing \"special\"\n"), 0U);
}

TEST(KernelStore, the_record_is_text_at_the_front_of_the_file) {
  const auto spec = fake_spec(64);
  const auto image = encode_entry(fake_kernel(spec), spec);
  const std::string text(reinterpret_cast<const char*>(image.data()), image.size());
  EXPECT_EQ(text.find("QUERNKRN"), 0U);
  EXPECT_NE(text.find(R"("family":"add")"), std::string::npos);
  EXPECT_NE(text.find(R"(["target","cpu fake +a,+b"])"), std::string::npos);
}

TEST(KernelStore, an_image_truncated_anywhere_is_refused) {
  const auto spec = fake_spec(64);
  const auto image = encode_entry(fake_kernel(spec), spec);
  for (size_t size = 0; size < image.size(); ++size) {
    EXPECT_THROW(decode_entry(std::span(image).first(size), "x"), Error) << size;
  }
  auto longer = image;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_entry(longer, "x"), Error);
}

TEST(KernelStore, an_image_with_any_bit_flipped_is_refused) {
  const auto spec = fake_spec(64);
  const auto image = encode_entry(fake_kernel(spec), spec);
  for (size_t bit = 0; bit < image.size() * 8; bit += 1 + bit % 3) {
    auto flipped = image;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_THROW(decode_entry(flipped, "x"), Error) << bit;
  }
}

TEST(KernelStore, a_second_start_compiles_nothing) {
  const TemporaryFolder folder;
  const auto log = folder / "log";
  for (int start = 0; start < 3; ++start) {
    KernelStore store = make_store(folder / "store");
    for (uint32_t width : {1U, 2U, 3U}) {
      const auto spec = fake_spec(width);
      EXPECT_EQ(get_fake(store, spec, fake_compiler(log)).code, fake_code(fake_key(spec)));
      get_fake(store, spec, fake_compiler(log));
    }
    EXPECT_EQ(store.stats().compiled, start == 0 ? 3U : 0U);
    EXPECT_EQ(store.stats().hits, start == 0 ? 3U : 6U);
    EXPECT_EQ(store.stats().misses, start == 0 ? 3U : 0U);
  }
  EXPECT_EQ(lines_of(log).size(), 3U);
}

TEST(KernelStore, a_bad_entry_is_set_aside_counted_and_rebuilt) {
  const TemporaryFolder folder;
  const auto spec = fake_spec(8);
  std::mt19937 random(1);
  {
    KernelStore store = make_store(folder.path());
    get_fake(store, spec);
  }
  const fs::path path = only_entry(folder.path());
  const auto good = bytes_of(path);
  for (int round = 0; round < store_rounds(); ++round) {
    auto bad = good;
    if (round % 3 == 0) {
      bad.resize(round == 0 ? 0 : random() % good.size());
    } else {
      bad[random() % bad.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    }
    write_bytes(path, bad);
    KernelStore store = make_store(folder.path());
    ASSERT_EQ(store.verify().size(), 1U);
    EXPECT_FALSE(store.verify()[0].good);
    EXPECT_FALSE(store.verify()[0].problem.empty());
    EXPECT_EQ(get_fake(store, spec).code, fake_code(fake_key(spec)));
    EXPECT_EQ(store.stats().rejected, 1U);
    EXPECT_EQ(store.stats().compiled, 1U);
    EXPECT_TRUE(store.verify()[0].good);
    EXPECT_EQ(bytes_of(path.string() + ".bad"), bad);
    store.prune(~uint64_t{0});
    EXPECT_FALSE(fs::exists(path.string() + ".bad"));
  }
}

TEST(KernelStore, an_entry_for_another_target_under_this_name_is_not_used) {
  const TemporaryFolder folder;
  const auto spec = fake_spec(8);
  const Target other{"cpu", "fake", "+a,+b,+c"};
  KernelStore(make_store(folder.path())).get(fake_key(spec, other), spec, other, fake_compiler());
  const fs::path wrong = only_entry(folder.path());
  fs::rename(wrong, wrong.parent_path() / (fake_key(spec).digest() + ".kernel"));
  KernelStore store = make_store(folder.path());
  EXPECT_FALSE(store.find(fake_key(spec)));
  EXPECT_FALSE(store.find_digest(fake_key(spec).digest()));
  EXPECT_EQ(get_fake(store, spec).code, fake_code(fake_key(spec)));
  EXPECT_EQ(store.stats().rejected, 1U);
}

TEST(KernelStore, every_change_of_a_key_field_is_another_kernel) {
  const TemporaryFolder folder;
  const auto spec = fake_spec(8);
  KernelStore store = make_store(folder.path());
  get_fake(store, spec);
  const KernelKey key = fake_key(spec);
  for (size_t i = 0; i < key.fields.size(); ++i) {
    KernelKey changed = key;
    changed.fields[i].second += "x";
    EXPECT_FALSE(store.find(changed)) << key.fields[i].first;
    changed = key;
    std::swap(changed.fields[i], changed.fields[(i + 1) % key.fields.size()]);
    EXPECT_FALSE(store.find(changed)) << "order " << key.fields[i].first;
  }
  EXPECT_TRUE(store.find(key));
}

TEST(KernelStore, a_compiler_that_answers_for_another_key_is_refused) {
  const TemporaryFolder folder;
  KernelStore store = make_store(folder.path());
  const auto wrong = [](const spec::AnySpec&, const Target& target) {
    return fake_kernel(fake_spec(9), target);
  };
  EXPECT_THROW(get_fake(store, fake_spec(8), wrong), Error);
  EXPECT_TRUE(store.list().empty());
  // The failure leaves no trace: the right one may follow.
  EXPECT_EQ(get_fake(store, fake_spec(8)).code, fake_code(fake_key(fake_spec(8))));
}

TEST(KernelStore, strict_never_compiles_and_names_the_kernel) {
  const TemporaryFolder folder;
  const auto spec = fake_spec(8);
  const KernelCompiler never = [](const spec::AnySpec&, const Target&) -> CompiledKernel {
    ADD_FAILURE() << "compiled";
    return {};
  };
  try {
    KernelStore strict = make_store(folder.path(), StoreMode::strict);
    get_fake(strict, spec, never);
    FAIL() << "a miss must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_NE(std::string(error.what()).find("\"width\":8"), std::string::npos);
  }
  KernelStore filler = make_store(folder.path());
  get_fake(filler, spec);
  KernelStore strict = make_store(folder.path(), StoreMode::strict);
  EXPECT_EQ(get_fake(strict, spec, never).code, fake_code(fake_key(spec)));
}

TEST(KernelStore, readonly_leaves_the_folder_as_it_was_and_off_ignores_it) {
  const TemporaryFolder folder;
  KernelStore filler = make_store(folder.path());
  get_fake(filler, fake_spec(1));
  const fs::path path = only_entry(folder.path());
  store::set_modification_time(path, 1'000'000'000);
  {
    KernelStore store = make_store(folder.path(), StoreMode::readonly);
    get_fake(store, fake_spec(1));
    get_fake(store, fake_spec(2));
    EXPECT_EQ(store.stats().compiled, 1U);
    EXPECT_EQ(store.stats().hits, 1U);
  }
  {
    KernelStore store = make_store(folder.path(), StoreMode::off);
    get_fake(store, fake_spec(1));
    EXPECT_EQ(store.stats().compiled, 1U);
  }
  EXPECT_EQ(only_entry(folder.path()), path);
  EXPECT_EQ(store::modification_time(path), 1'000'000'000);
}

TEST(KernelStore, a_bundle_is_a_tier_that_needs_no_directory) {
  const TemporaryFolder folder;
  KernelStore maker = make_store(folder / "store");
  const CompiledKernel kernel = get_fake(maker, fake_spec(5));
  const std::string digest = kernel.key.digest();
  maker.export_entries({digest}, folder / "bundle/kernels");
  EXPECT_THROW(maker.export_entries({std::string(64, '0')}, folder / "bundle/kernels"), Error);

  KernelStore store(
      {.directory = {}, .readonly_tiers = {folder / "bundle/kernels"}, .mode = StoreMode::strict});
  const CompiledKernel found = required(store.find_digest(digest));
  EXPECT_EQ(found.code, kernel.code);
  EXPECT_EQ(entry_digest(found), entry_digest(kernel));
  ASSERT_EQ(store.list().size(), 1U);
  EXPECT_EQ(store.list()[0].entry_digest, entry_digest(kernel));
}

TEST(KernelStore, a_memory_only_store_can_fill_a_bundle) {
  const TemporaryFolder folder;
  KernelStore store({.directory = {}, .readonly_tiers = {}, .mode = StoreMode::off});
  const CompiledKernel kernel = get_fake(store, fake_spec(5));
  store.export_entries({kernel.key.digest()}, folder / "kernels");
  EXPECT_TRUE(fs::exists(folder / "kernels" / (kernel.key.digest() + ".kernel")));
}

TEST(KernelStore, the_entry_digest_covers_what_executes_and_not_the_clock) {
  CompiledKernel kernel = fake_kernel(fake_spec(5));
  const std::string digest = entry_digest(kernel);
  kernel.record = {{"compile_ms", "999"}};
  EXPECT_EQ(entry_digest(kernel), digest);
  auto changed = kernel;
  changed.code.back() ^= std::byte{1};
  EXPECT_NE(entry_digest(changed), digest);
  changed = kernel;
  changed.symbol += "_";
  EXPECT_NE(entry_digest(changed), digest);
  changed = kernel;
  changed.scratch_bytes += 1;
  EXPECT_NE(entry_digest(changed), digest);
  changed = kernel;
  changed.key.fields[0].second += "_";
  EXPECT_NE(entry_digest(changed), digest);
}

TEST(KernelStore, list_is_sorted_and_entry_takes_a_unique_prefix) {
  const TemporaryFolder folder;
  KernelStore store = make_store(folder.path());
  for (uint32_t width = 0; width < 40; ++width) get_fake(store, fake_spec(width));
  const auto entries = store.list();
  ASSERT_EQ(entries.size(), 40U);
  for (size_t i = 1; i < entries.size(); ++i) EXPECT_LT(entries[i - 1].spec, entries[i].spec);
  EXPECT_EQ(required(store.entry(entries[7].key_digest)).spec, entries[7].spec);
  EXPECT_EQ(required(store.entry(entries[7].entry_digest.substr(0, 20))).spec, entries[7].spec);
  EXPECT_THROW((void)store.entry(""), Error);
  EXPECT_FALSE(store.entry("xyz"));
}

TEST(KernelStore, prune_removes_the_least_recently_used_whatever_the_clock_did) {
  const TemporaryFolder folder;
  {
    KernelStore store = make_store(folder.path());
    for (uint32_t width = 1; width <= 4; ++width) get_fake(store, fake_spec(width));
    // The clock once stood ten years ahead, when entry 3 was used last.
    const auto ahead = std::chrono::system_clock::now() + std::chrono::hours(24 * 3650);
    const auto path = required(store.entry(fake_key(fake_spec(3)).digest())).path;
    ASSERT_TRUE(store::set_modification_time(
        path, std::chrono::nanoseconds(ahead.time_since_epoch()).count()));
  }
  {
    // Now it is right again, and 1 and then 2 are used.
    KernelStore store = make_store(folder.path());
    get_fake(store, fake_spec(1));
    get_fake(store, fake_spec(2));
  }
  KernelStore store = make_store(folder.path());
  const auto entries = store.list();
  const uint64_t each = entries[0].file_bytes;
  std::vector<std::string> order;
  for (uint64_t keep = 3; keep <= 3; --keep) {
    for (const auto& gone : store.prune(keep * each)) order.push_back(gone.spec);
  }
  EXPECT_EQ(order,
            (std::vector<std::string>{spec_to_text(fake_spec(4)), spec_to_text(fake_spec(3)),
                                      spec_to_text(fake_spec(1)), spec_to_text(fake_spec(2))}));
}

TEST(KernelStore, a_clock_at_zero_or_far_ahead_does_not_make_an_entry_stale) {
  const TemporaryFolder folder;
  KernelStore filler = make_store(folder.path());
  get_fake(filler, fake_spec(1));
  const fs::path path = only_entry(folder.path());
  for (const int64_t stamp : {int64_t{0}, int64_t{1}, int64_t{9'000'000'000'000'000'000}}) {
    store::set_modification_time(path, stamp);
    KernelStore store = make_store(folder.path());
    get_fake(store, fake_spec(1));
    EXPECT_EQ(store.stats().compiled, 0U);
    EXPECT_EQ(store.list().size(), 1U);
  }
}

TEST(KernelStore, threads_that_want_the_same_kernels_compile_each_once) {
  const TemporaryFolder folder;
  for (int round = 0; round < store_rounds(); ++round) {
    const auto log = folder / ("log" + std::to_string(round));
    KernelStore store = make_store(folder / std::to_string(round));
    std::vector<std::thread> threads;
    threads.reserve(8);
    std::atomic<int> wrong{0};
    for (uint32_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t i = 0; i < 6; ++i) {
          const auto spec = fake_spec(1 + (i + t) % 6);
          if (get_fake(store, spec, fake_compiler(log)).code != fake_code(fake_key(spec))) ++wrong;
          if (i == t % 6) store.list();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(lines_of(log).size(), 6U);
    EXPECT_EQ(store.stats().compiled, 6U);
  }
}

TEST(KernelStore, a_failed_compilation_passes_on_and_the_next_caller_tries_again) {
  const TemporaryFolder folder;
  KernelStore store = make_store(folder.path());
  const KernelCompiler fails = [](const spec::AnySpec&, const Target&) -> CompiledKernel {
    throw Error(ErrorKind::failed, "compiler", "no");
  };
  EXPECT_THROW(get_fake(store, fake_spec(1), fails), Error);
  get_fake(store, fake_spec(1));
  EXPECT_EQ(store.stats().compiled, 1U);
}

TEST(KernelStore, a_digest_that_is_none_leads_to_no_file) {
  const TemporaryFolder folder;
  KernelStore store = make_store(folder.path());
  const std::string digest = get_fake(store, fake_spec(1)).key.digest();
  KernelStore other = make_store(folder.path());
  for (const std::string& text : {std::string(), std::string("../kernels/") + digest, digest + "/",
                                  digest.substr(1), "x" + digest.substr(1), std::string(64, '.')}) {
    EXPECT_FALSE(other.find_digest(text)) << text;
  }
  EXPECT_TRUE(other.find_digest(digest));
}

TEST(KernelStore, modes_have_names) {
  EXPECT_EQ(store_mode_from_name("auto"), StoreMode::automatic);
  EXPECT_EQ(store_mode_from_name("readonly"), StoreMode::readonly);
  EXPECT_EQ(store_mode_from_name("strict"), StoreMode::strict);
  EXPECT_EQ(store_mode_from_name("off"), StoreMode::off);
  EXPECT_THROW(store_mode_from_name("on"), Error);
}

}  // namespace
}  // namespace quern::test
