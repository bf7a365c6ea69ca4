# Copyright The hotprofile Authors
# SPDX-License-Identifier: Apache-2.0

# Functions, strings and arithmetic of the shell itself.
down() {
	if [ "$1" -gt 0 ]; then
		down $(($1 - 1))
	fi
	word="${word%?}$1"
}
i=0
while [ $i -lt 1000000 ]; do
	word=something
	down $((i % 10))
	case "$word" in *7) x=1 ;; *) x=2 ;; esac
	i=$((i + x))
done
