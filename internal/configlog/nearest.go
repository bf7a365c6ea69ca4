// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import "math"

// Nearest returns the candidate with the smallest edit distance to a string, and this
// distance. Without candidates, the distance is the largest int.
func Nearest(text string, candidates []string) (nearest string, least int) {
	least = math.MaxInt
	for _, c := range candidates {
		if d := distance(text, c); d < least {
			nearest, least = c, d
		}
	}
	return nearest, least
}

// distance returns the Levenshtein distance between two strings, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
