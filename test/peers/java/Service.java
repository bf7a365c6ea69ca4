// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.HttpURLConnection;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.concurrent.Executors;

/**
 * A service that the OpenTelemetry Java agent watches: the JDK's HTTP server.
 *
 * <p>It serves /work, which takes some CPU, and calls itself all the time. A line on its standard
 * input changes it; it answers with the same line when the change is in force. From "slow" on
 * /work takes long, and keeps memory; from "fail" on it answers 500.
 */
public class Service {
  static volatile int took = 1, failing = 200;
  static volatile byte[] kept;
  static final ThreadMXBean threads = ManagementFactory.getThreadMXBean();

  static void work(long milliseconds) {
    long until = threads.getCurrentThreadCpuTime() + milliseconds * 1_000_000;
    while (threads.getCurrentThreadCpuTime() < until) {}
  }

  static void call(int port) {
    while (true) {
      try {
        var c = (HttpURLConnection) URI.create("http://127.0.0.1:" + port + "/work").toURL().openConnection();
        c.getResponseCode();
        c.disconnect();
        Thread.sleep(50);
      } catch (IOException | InterruptedException e) {
        System.err.println(e);
      }
    }
  }

  public static void main(String[] args) throws IOException {
    var server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(Executors.newFixedThreadPool(4));
    server.createContext("/work", exchange -> {
      work(took);
      exchange.sendResponseHeaders(failing, -1);
      exchange.close();
    });
    server.start();
    var client = new Thread(() -> call(server.getAddress().getPort()));
    client.setDaemon(true);
    client.start();
    System.out.println("ready");
    var in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      if (line.equals("slow")) {
        took = 100;
        kept = new byte[128 << 20];
      }
      if (line.equals("fail")) failing = 500;
      System.out.println(line);
    }
    System.exit(0);
  }
}
