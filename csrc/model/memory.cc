#include "model/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hasten {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, const std::string& purpose) {
  size_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  if (size_ == 0) return;
  // size_ < bytes: the rounding overflowed
  void* const pages =
      size_ < bytes ? MAP_FAILED : mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    size_ = 0;
    throw OutOfMemory("the system refused " + std::to_string(bytes) + " bytes for " + purpose + ": " + std::strerror(errno));
  }
  data_ = static_cast<uint8_t*>(pages);
#ifdef MADV_HUGEPAGE
  madvise(data_, size_, MADV_HUGEPAGE);  // advice only: without huge pages everything works, slower
#endif
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace hasten
