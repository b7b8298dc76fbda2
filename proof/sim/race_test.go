//go:build race

package sim_test

const manyHistories = 300
