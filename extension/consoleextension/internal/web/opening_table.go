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
func (v *profileView) table() {
	orders := []flame.Order{flame.ByName, flame.BySelf, flame.ByTotal}
	if v.Compared {
		orders = append(orders, flame.BySelfDifference, flame.ByTotalDifference)
	}
	if v.Order = v.Query.Order; !slices.Contains(orders, v.Order) {
		v.Order = v.usualOrder()
	}
	v.short()
	t := v.query.Table(v.Order, v.Query.Search, v.Query.Rows)
	v.Matching, v.Of = t.Matching, t.Functions
	if t.Matching > len(t.Rows) && v.Query.Rows < maxRows {
		q := v.Query
		q.Rows = maxRows
		v.MoreRows = q.url("#functions")
	}
	v.Rows = v.functions(t)
}

// OrderURL returns the URL of the page with the table in another order.
func (v *profileView) OrderURL(order string) string {
	q := v.Query
	if q.Order = flame.Order(order); q.Order == v.usualOrder() {
		q.Order = ""
	}
	return cmp.Or(q.url("#functions"), "#functions"+v.ID)
}

// shortRows is the number of functions that are listed above the flame graph.
const shortRows = 3

// short fills in the functions that are listed above the flame graph.
func (v *profileView) short() {
	t := v.query.Table(flame.BySelf, "", shortRows)
	t.Rows = slices.DeleteFunc(t.Rows, func(r flame.Row) bool { return r.Self.Here == 0 })
	if !v.InKernel {
		v.Hottest = v.functions(t)
	}
	if v.Compared {
		tree := v.query.Tree()
		t.Rows = nil
		for _, n := range tree.Grown(shortRows) {
			t.Rows = append(t.Rows, flame.Row{Function: tree.Functions[n.Function], Line: n.Line, Self: n.Self, Total: n.Total})
		}
		v.Grown = v.functions(t)
	}
}

// functions returns the rows of a table.
func (v *profileView) functions(t flame.Table) []functionRow {
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
			Name: r.Name, Place: place(flame.ShortPath(r.File, placeLength), r.Line), Whole: place(r.File, r.Line), URL: cmp.Or(q.url(""), "#flame"+v.ID), Current: r.Name == v.Query.Function,
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
