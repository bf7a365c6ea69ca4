// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package traces holds a corpus of CPU traces and what is needed to make it:
// schedules that say what a load is made to do, the labels that follow from them
// by the rule of docs/trigger-accuracy/labelling.md, the traces themselves, and
// a generator for those that are not recorded. Its tests play the traces to the
// trigger and to three other algorithms and score them.
package traces
