// Package storetest is what every dibs.Store must do, as a table of named
// properties that a store's own tests run:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, &storetest.Harness{
//			New: func(t testing.TB) *storetest.Backend {
//				file := filepath.Join(t.TempDir(), "dibs.db")
//				return &storetest.Backend{
//					Open: func() dibs.Store { return open(t, file) },
//					Wipe: func() { remove(t, file) },
//				}
//			},
//			Lacks: map[storetest.Feature]string{
//				storetest.Skew: "no clock of a client's process is read anywhere",
//			},
//		})
//	}
//
// # The harness
//
// New makes one fresh, empty backend for each trial of a property. Open opens
// one more store on it, as another process would; the others are what can be
// done to a backend from outside. New and Open end what they start with
// t.Cleanup and fail the test through t themselves. Each trial has a backend
// of its own, so New may be called from several goroutines at once.
//
// What a backend cannot do it declares in Lacks, with the reason. Nothing is
// left out silently: a feature that is neither there nor declared fails the
// test, as does one that is both; what a missing feature leaves unchecked is
// logged by name.
//
// # Time
//
// A store that lives in this process sets Virtual, and every trial runs in a
// testing/synctest bubble: days pass in no time, and nothing is late. All other
// stores run in real time with short leases, many trials at once, because they
// mostly wait. A lease that is to run out lasts Short; the backend may notice
// that up to Late after the fact, never before it.
//
// Trials in real time fail falsely when the machine is so slow that a lease
// runs out in the meantime. The kit watches for that: a trial with short leases
// that failed while the machine or the store stood still is logged and made
// again, five times in all. One without that excuse fails at once, and so does
// every trial in which nothing is short, such as those that look for races, unless
// it was too slow to take a turn that it needs.
//
// # Trust
//
// A kit that passes everything is worth nothing. Package internal/model is the
// simplest correct store there can be, with bugs that can be switched on one by
// one, and the tests of this package show that the correct one passes and that
// each bug is caught by the property that is meant to catch it.
package storetest
