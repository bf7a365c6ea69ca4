// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dictionary works on the dictionaries of OTLP profiles: the tables of
// strings, attributes, functions, mappings, locations, stacks and links that the
// profiles of a request refer to by index.
package dictionary

import "go.opentelemetry.io/collector/pdata/pprofile"

// AppendZeroEntries appends the zero entry to each table. OTLP requires it at
// index 0, which stands for "not set".
func AppendZeroEntries(d pprofile.ProfilesDictionary) {
	d.StringTable().Append("")
	d.AttributeTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
}
