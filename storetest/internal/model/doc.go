// Package model is the simplest correct dibs.Store there can be: one mutex,
// plain slices, everything looked through each time. It is what a property of
// storetest is read against, and the reference that random schedules are
// compared with. It is not for use: it is slow, and it never forgets.
//
// It also has bugs, each of which can be switched on. They are the mistakes
// that locks over databases really make, and storetest has to catch each.
//
// A key lives like this; what happens by itself as time passes is worked out
// when somebody next asks (see advance).
//
//	       Claim                     Settle Release, Keep
//	idle ─────────▶ held by a token ─────────────────────▶ idle
//	 ▲               │   │      ▲                           (or offered to
//	 │               │   │      │ Claim by that token        the next place)
//	 │  Settle       │   └── its lease ends, or Settle Abandon
//	 └───────────────┘                  │
//	                                    ├─▶ abandoned: the next Claim is
//	                                    │   granted as attempt n+1
//	                                    └─▶ with AtMostOnce, unknown: nobody
//	                                        is granted until Evict, Forget
//	                                        or Resolve
package model
