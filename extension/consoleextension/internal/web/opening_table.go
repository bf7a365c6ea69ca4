// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
)

// tableColumn is a column of the table of functions.
type tableColumn struct {
	Text, Title, URL, Key string
	Sorted                string
}

// functionRow is a row of the table of functions.
type functionRow struct {
	Name         string
	Place, Whole string // file and line, shortened and in full
	URL          string
	Self, Total  valueCell
	Current      bool
}

type valueCell struct {
	Value, Share string
	There        string
	Points       string
	Change       string
	Sort         float64
	Difference   float64
	Width        float64
}

// table fills in the table of functions.
func (v *profileView) table(opening string) {
	order := v.Query.Order
	columns := []struct {
		key         flame.Order
		text, title string
	}{
		{flame.ByName, "Function", ""},
		{flame.BySelf, "Self", "spent in the function itself"},
		{flame.BySelfDifference, "Self, difference", "difference of the shares of self, in percentage points"},
		{flame.ByTotal, "Total", "with all that it called"},
		{flame.ByTotalDifference, "Total, difference", "difference of the shares of total, in percentage points"},
	}
	if !v.Compared {
		columns = slices.Delete(slices.Delete(columns, 4, 5), 2, 3)
	}
	known := false
	for _, c := range columns {
		known = known || c.key == order
	}
	standard := flame.BySelf
	if v.inKernel() {
		standard = flame.ByTotal
	}
	if !known {
		order = standard
	}
	for _, c := range columns {
		q := v.Query
		if q.Order = c.key; c.key == standard {
			q.Order = ""
		}
		column := tableColumn{Text: c.text, Title: c.title, URL: cmp.Or(q.url(opening, "#functions"), "#functions"+v.ID), Key: string(c.key)}
		if c.key == order {
			if column.Sorted = "descending"; c.key == flame.ByName {
				column.Sorted = "ascending"
			}
		}
		v.Columns = append(v.Columns, column)
	}
	v.short(opening)
	t := v.query.Table(order, v.Query.Search, v.Query.Rows)
	v.Matching, v.Of = t.Matching, t.Functions
	if t.Matching > len(t.Rows) && v.Query.Rows < maxRows {
		q := v.Query
		q.Rows = maxRows
		v.MoreRows = q.url(opening, "#functions")
	}
	v.Rows = v.functions(t, opening)
}

// shortRows is the number of functions that are listed above the flame graph.
const shortRows = 3

// short fills in the functions that are listed above the flame graph.
func (v *profileView) short(opening string) {
	t := v.query.Table(flame.BySelf, "", shortRows)
	t.Rows = slices.DeleteFunc(t.Rows, func(r flame.Row) bool { return r.Self.Here == 0 })
	if !v.inKernel() {
		v.Hottest = v.functions(t, opening)
	}
	if v.Compared {
		tree := v.query.Tree()
		t.Rows = nil
		for _, n := range tree.Grown(shortRows) {
			t.Rows = append(t.Rows, flame.Row{Function: tree.Functions[n.Function], Line: n.Line, Self: n.Self, Total: n.Total})
		}
		v.Grown = v.functions(t, opening)
	}
}

// functions returns the rows of a table.
func (v *profileView) functions(t flame.Table, opening string) []functionRow {
	samples := v.query.Samples()
	var widest flame.Value // largest values of self and of total
	for _, r := range t.Rows {
		widest.Here, widest.There = max(widest.Here, r.Self.Here), max(widest.There, r.Total.Here)
	}
	rows := make([]functionRow, 0, len(t.Rows))
	for _, r := range t.Rows {
		q := v.Query
		q.Function = r.Name
		rows = append(rows, functionRow{
			Name: r.Name, Place: place(flame.ShortPath(r.File, placeLength), r.Line), Whole: place(r.File, r.Line), URL: cmp.Or(q.url(opening, ""), "#flame"+v.ID), Current: r.Name == v.Query.Function,
			Self: v.cell(r.Self, t.Total, widest.Here, samples), Total: v.cell(r.Total, t.Total, widest.There, samples),
		})
	}
	return rows
}

// cell returns the cell with the value of a function. widest is the
// largest value of the column.
func (v *profileView) cell(value, all flame.Value, widest int64, samples flame.Value) valueCell {
	here, there := value.Share(all)
	c := valueCell{Value: amount(v.query.Of.Unit, value.Here), Share: percent(here), Sort: here}
	if widest > 0 {
		c.Width = math.Round(100 * float64(value.Here) / float64(widest))
	}
	if v.Compared {
		c.There, c.Points, c.Change = percent(there), points(here, there), change(here, there, samples)
		c.Difference = here - there
	}
	return c
}

// place returns the file and the line of a function.
func place(file string, line int32) string {
	if file == "" || line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(int(line))
}
