// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

/** Computes until its standard input is closed. */
public class Busy {
  static volatile boolean open = true;
  static int sum;

  static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

  static int total(int n) { int s = 0; for (int i = 0; i < n; i++) s += i % 7; return s; }

  public static void main(String[] args) throws Exception {
    Thread reader = new Thread(() -> {
      try { while (System.in.read() >= 0) { } } catch (java.io.IOException e) { }
      open = false;
    });
    reader.start();
    System.out.println("ready");
    while (open) sum += fib(20) + total(20000);
  }
}
