// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
)

// table writes a Markdown table. Its elements are the headings of the columns.
type table []string

func (t table) head(w io.Writer) {
	t.row(w, t...)
	t.row(w, strings.Split(strings.Repeat("--- ", len(t))[:4*len(t)-1], " ")...)
}

func (t table) row(w io.Writer, cells ...string) {
	fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
