// Package gocronlock lets gocron's schedulers on several hosts run each tick of a job on one
// host, even if the hosts' clocks differ.
//
// A Locker is gocron's Locker: each tick runs on the host that comes first. An Elector is
// gocron's Elector: one host runs all ticks, until it stops or dies. gocron ignores the
// Locker if it has an Elector.
package gocronlock
