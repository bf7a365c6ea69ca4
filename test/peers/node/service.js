// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// A service that OpenTelemetry's automatic instrumentation of Node.js watches: Express.
//
// It serves /work, which takes some CPU, and calls itself all the time. A line on its
// standard input changes it; it answers with the same line when the change is in force.
// From "slow" on /work takes long, and keeps memory; from "fail" on it answers 500.
const http = require("http");
const readline = require("readline");
const express = require("express");

let took = 1, failing = false, kept = [];

function work(milliseconds) {
  const began = process.cpuUsage();
  for (let used = { user: 0, system: 0 }; used.user + used.system < 1000 * milliseconds; used = process.cpuUsage(began)) {
    for (let i = 0; i < 100000; i++) Math.sqrt(i);
  }
}

const app = express();
app.get("/work/:item", (request, response) => {
  work(took);
  response.status(failing ? 500 : 200).send(request.params.item);
});
const server = app.listen(0, "127.0.0.1", () => {
  const call = () => http.get({ port: server.address().port, path: "/work/7" }, (response) => {
    response.resume();
    response.on("end", () => setTimeout(call, 50));
  });
  call();
  console.log("ready");
});
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  if (line === "slow") {
    took = 100;
    kept = new Array(1 << 23).fill(0.5);
  }
  if (line === "fail") failing = true;
  console.log(line);
}).on("close", () => process.exit());
