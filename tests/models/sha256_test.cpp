#include "models/sha256.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "models/sha256_compress.h"

namespace quern {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(sha256, gives_the_published_digests) {
  // FIPS 180-4 examples, and NIST's long message.
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(bytes_of("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                                "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256_hex(bytes_of(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(sha256, does_not_depend_on_how_the_data_is_cut) {
  std::string text;
  for (int i = 0; i < 400; ++i) text.push_back(static_cast<char>(i * 7));
  for (size_t length = 0; length <= 200; ++length) {
    const auto data = bytes_of(text).first(length);
    const std::string whole = sha256_hex(data);
    for (const size_t piece : {1, 3, 55, 64, 65}) {
      Sha256 digest;
      for (size_t at = 0; at < length; at += piece) {
        digest.update(data.subspan(at, std::min(piece, length - at)));
      }
      ASSERT_EQ(digest.hex(), whole) << length << " bytes in pieces of " << piece;
    }
  }
}

TEST(sha256, the_processors_instructions_give_the_portable_state) {
  if (!sha256::has_instructions()) GTEST_SKIP() << "this processor has no SHA instructions";
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    sha256::State portable;
    for (uint32_t& word : portable) word = static_cast<uint32_t>(random());
    std::array<std::byte, 64> block;
    for (std::byte& byte : block) byte = static_cast<std::byte>(random());
    sha256::State fast = portable;
    sha256::compress_portable(portable, block.data());
    sha256::compress_x86(fast, block.data());
    ASSERT_EQ(fast, portable) << "round " << round << " of seed 1";
  }
}

TEST(sha256, reading_the_digest_does_not_disturb_it) {
  Sha256 digest;
  digest.update(bytes_of("ab"));
  EXPECT_EQ(digest.hex(), sha256_hex(bytes_of("ab")));
  digest.update(bytes_of("c"));
  EXPECT_EQ(digest.hex(), sha256_hex(bytes_of("abc")));
}

}  // namespace
}  // namespace quern
