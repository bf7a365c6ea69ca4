// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package traces contains a corpus of CPU traces and the code to create it. A
// schedule describes what a load does. The labels of a trace follow from its
// schedule by the rule in docs/trigger-accuracy/labelling.md. Traces are either
// recorded or synthesized. The tests run the trigger and three other algorithms on
// the traces and compute their scores.
package traces
