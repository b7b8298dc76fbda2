package main

import (
	"slices"
	"strings"
	"testing"
)

// TestChoose: -only takes groups and parts of names, with commas.
func TestChoose(t *testing.T) {
	count := func(of func(comparison) bool) (n int) {
		for _, c := range comparisons {
			if of(c) {
				n++
			}
		}
		return n
	}
	in := func(groups ...string) int {
		return count(func(c comparison) bool { return slices.Contains(groups, c.group) })
	}
	for only, want := range map[string]int{
		"":                                len(comparisons),
		"sqllock":                         in("sqllock"),
		"memory,sqllock":                  in("memory", "sqllock"),
		"sqllock,memory,sqllock":          in("memory", "sqllock"),
		"sqllock,fairness of nobody":      0,
		"Redis hand-over":                 2,
		"Redis hand-over, 2 waiters: p50": 1,
		"Redis hand-over,sqllock":         2 + in("sqllock"),
		"Redis round trips of a replay":   1,
		"nosuch":                          0,
		"memory,nosuch":                   0,
		"memory,":                         0,
		"MEMORY":                          0,
	} {
		chosen, err := choose(only)
		if len(chosen) != want || (err != nil) != (want == 0) {
			t.Errorf("%q chooses %d comparisons, want %d: %v", only, len(chosen), want, err)
		}
	}
}

// TestRefuses: what measures nothing ends with an error, before anything is measured.
func TestRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"-only nosuch":        `only: "nosuch" is neither a group nor a part of a name; the groups are memory, sqlite, redis,`,
		"-only memory,nosuch": `only: "nosuch" is neither`,
		"memory":              `"memory" is not a flag`,
		"-rounds 0":           "0 rounds of",
		"-rounds 1 -round 0s": "1 rounds of 0s",
	} {
		if err := run(t.Context(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}
