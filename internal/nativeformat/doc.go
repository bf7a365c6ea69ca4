// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package nativeformat reads and writes the buffers that the profiler of the
// OpenTelemetry .NET Automatic Instrumentation hands to its exporter plugin:
// thread samples, allocation samples and the selective sampler's samples.
//
// The format is positional and has no lengths of records: a reader that loses
// step has lost the rest of the buffer. Everything that this package refuses, it
// refuses because reading on would only give invented samples.
//
// # Records
//
// Each record is an opcode and its fields. The kind of a buffer is not written
// in it; each kind has opcodes of its own.
//
//	kind          opcode  record            fields
//	threads       0x01    start batch       i32 version, 1
//	                                        i64 capture start, ms since the Unix epoch
//	              0x02    sample            string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        [u8 selected for frequent sampling, 0 or 1]
//	                                        frames
//	              0x06    end batch
//	              0x07    batch statistics  i32 microseconds suspended, i32 threads,
//	                                        i32 frames, i32 name cache misses
//	allocations   0x08    sample            i64 ms since the Unix epoch
//	                                        u64 bytes of the sampled object
//	                                        string type name, string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        frames
//	selected      0x0A    start batch
//	              0x09    sample            i64 ms since the Unix epoch
//	                                        string thread name
//	                                        i64 trace id high, i64 trace id low, i64 span id
//	                                        frames
//	              0x0B    end batch
//
// The field in brackets is there in every sample of a buffer or in none, and
// nothing in the buffer says which: see [Format].
//
// # Fields
//
// Integers are big-endian. A string is an i16 count of UTF-16 code units, 0 to
// 512, then the units, which are little-endian. Surrogates may stand alone; each
// such becomes U+FFFD. Ids of all zeros mean none; an id's bytes are in the
// order in which its hexadecimal form is written.
//
// Frames are the leaf first, each an i16 code:
//
//	0      no more frames
//	-c     a string follows, and c stands for it from now on; again replaces
//	c      the string that c stands for
//
// Codes hold from their definition to the end of the buffer in thread samples,
// to the end of the sample in allocation samples, and to the next start batch
// in selected samples. The writer remembers the codes 1 to 9,999 and then
// defines 10,000 again and again.
//
// # Sizes
//
// The writer tests before each field whether the buffer has 200 KiB, and then
// writes nothing more: a buffer of thread samples may end inside a sample. The
// exporter copies at most 200 KiB of it, so the end may also be inside a field.
// Allocation samples and selected batches are appended whole or not at all.
//
// # Source
//
// The layout was taken from buffers recorded from the instrumentation's release
// 1.16, those in testdata among them, and checked against its writer,
// src/OpenTelemetry.AutoInstrumentation.Native/continuous_profiler.cpp.
package nativeformat
