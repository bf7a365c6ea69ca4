// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfmap

import (
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// RuntimeOf returns the language runtime that a library belongs to, based on the
// library's path. It returns "" for other files. RuntimeOf does not need to recognize
// Python and V8, because they mark each name in a perf map.
func RuntimeOf(path string) samples.FrameType {
	switch path[strings.LastIndexByte(path, '/')+1:] {
	case "libjvm.so":
		return samples.FrameJVM
	case "libcoreclr.so", "libmonosgen-2.0.so":
		return samples.FrameDotnet
	}
	return ""
}

// Line splits a name from a perf map into function, file and line, and returns the type of
// the frame. SystemName is the original name if it differs from the function. runtime is
// the result of RuntimeOf for the process, or "" if unknown.
func Line(name string, runtime samples.FrameType) (samples.Line, samples.FrameType) {
	name = strings.ToValidUTF8(name, "?")
	line, kind := python(name)
	if kind == "" {
		line, kind = v8(name)
	}
	if kind == "" {
		switch kind = runtime; runtime {
		case samples.FrameJVM:
			line.Function = java(name)
		case samples.FrameDotnet:
			line.Function = dotnet(name)
		default:
			kind = samples.FrameNative
		}
	}
	if line.Function == "" {
		line.Function = name
	}
	if line.Function != name {
		line.SystemName = name
	}
	return line, kind
}

// python parses "py::qualified.name:/path/of/file.py".
func python(name string) (line samples.Line, kind samples.FrameType) {
	rest, ok := strings.CutPrefix(name, "py::")
	if !ok {
		return line, ""
	}
	line.Function, line.File, _ = strings.Cut(rest, ":")
	return line, samples.FramePython
}

// v8 parses "JS:*name /path/of/file.js:line:column". The mark before the name
// identifies the compiler. v8 also parses names of V8's own code, such as
// "Builtin:ArrayMap".
func v8(name string) (line samples.Line, kind samples.FrameType) {
	what, rest, ok := strings.Cut(name, ":")
	if !ok {
		return line, ""
	}
	switch what {
	case "Builtin", "BytecodeHandler", "Handler", "Stub", "RegExp", "Callback", "CallbackLoad", "CallbackStore":
		return line, samples.FrameV8
	case "JS", "LazyCompile", "Function", "Script", "Eval":
	default:
		return line, ""
	}
	rest = strings.TrimLeft(rest, "~^*+'")
	function, position := splitSource(rest)
	line.Function = function
	if function == "" {
		line.Function = "(anonymous)"
		if what == "Script" || what == "Eval" {
			line.Function = "(toplevel)"
		}
	}
	position, _ = cutNumber(position) // the column
	line.File, line.StartLine = cutNumber(position)
	return line, samples.FrameV8
}

// splitSource splits a function's name from the source position after it. The name and
// the position may contain spaces.
func splitSource(s string) (function, position string) {
	at := -1
	for _, start := range []string{" /", " node:", " file:", " http:", " https:"} {
		if i := strings.Index(" "+s, start); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 {
		if at = strings.LastIndexByte(s, ' ') + 1; at == 0 {
			return s, ""
		}
	}
	return strings.TrimSuffix(s[:at], " "), s[at:]
}

// cutNumber cuts a colon and a number off the end.
func cutNumber(s string) (rest string, n int64) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, 0
	}
	n, err := strconv.ParseInt(s[i+1:], 10, 32)
	if err != nil || n < 0 {
		return s, 0
	}
	return s[:i], n
}

// java parses "int pack.Class.method(int)", which the JVM writes, and
// "Lpack/Class;::method", which agents write. Other names belong to the JVM's own code.
func java(name string) string {
	if class, method, ok := strings.Cut(name, ";::"); ok && strings.HasPrefix(class, "L") {
		return strings.ReplaceAll(class[1:], "/", ".") + "." + method
	}
	head, _, ok := strings.Cut(name, "(")
	if !ok {
		return name
	}
	_, function, ok := strings.Cut(head, " ")
	if !ok || strings.IndexByte(function, '.') <= 0 || strings.HasSuffix(function, " ") {
		return name
	}
	return function
}

// dotnet parses "instance void [Assembly] Space.Type::Method(int32)[Tier0]". Other names
// belong to the runtime's own stubs.
func dotnet(name string) string {
	typ, method, ok := strings.Cut(name, "::")
	assembly := strings.LastIndex(typ, "] ")
	if !ok || assembly < 0 || !strings.Contains(typ[:assembly], "[") {
		return name
	}
	typ = typ[assembly+2:]
	method, _, ok = strings.Cut(method, "(")
	if !ok || typ == "" || method == "" {
		return name
	}
	return typ + "." + method
}
