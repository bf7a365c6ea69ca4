// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

#include <cstdio>
#include <string>
#include <vector>

namespace shop {
template <typename T>
struct Basket {
  std::vector<T> items;
  __attribute__((noinline)) int add(T item, int n) {
    items.push_back(item);
    return n + getchar();
  }
};
}  // namespace shop

int main() {
  shop::Basket<std::string> basket;
  puts("ready");
  fflush(stdout);
  return basket.add("tea", 1);
}
