// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"path"
	"regexp"

	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

var phpFiles = regexp.MustCompile(`^(php(-cgi|-fpm)?[0-9.]*|libphp[0-9.]*\.so)$`)

func isPHP(file string) bool { return phpFiles.MatchString(path.Base(file)) }

// phpLayout returns the layout of PHP. The library does not find the layout of a
// thread-safe build.
func phpLayout(l *loaded[support.PHPProcInfo]) (*interpreter.PHP, error) {
	if _, err := l.attach(l.process.Memory, nil); err != nil {
		return nil, err
	}
	loop, err := l.loop()
	if err != nil {
		return nil, err
	}
	function := func(name string) uint64 { return l.field("zend_function", name).Uint() }
	info := l.info
	return &interpreter.PHP{
		Loop: loop, Current: info.Current_execute_data,
		FrameBack: uint64(info.Zend_execute_data_prev_execute_data), FrameFunction: uint64(info.Zend_execute_data_function),
		FrameLast: uint64(info.Zend_execute_data_opline), FrameFlags: uint64(info.Zend_execute_data_this_type_info),
		InstructionLine: uint64(info.Zend_op_lineno),
		FunctionSize:    function("Sizeof"), FunctionType: function("common_type"), FunctionName: function("common_funcname"),
		FunctionClass: function("common_scope"), FunctionFile: function("op_array_filename"), FunctionFirstLine: function("op_array_linestart"),
		ClassName: l.field("zend_class_entry", "name").Uint(), Text: l.field("zend_string", "val").Uint(),
	}, nil
}
