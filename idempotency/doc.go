// Package idempotency makes HTTP handlers idempotent: a request that carries an Idempotency-Key
// runs once, and every retry gets the first one's answer.
//
//	m, err := idempotency.New(client, nil)
//	http.ListenAndServe(addr, m.Wrap(mux))
//
// The rules that clients rely on are in docs/reference/http.md; Options change them. The states of a key, as
// a client sees it:
//
//	           new ◄───────────────────────────────────────────┐
//	            │ a request: the handler runs                  │
//	            ▼                                              │
//	         running ── duplicates: 409, or they wait          │
//	│ its answer │ no answer to keep    │ crash, panic, broken │ retention over
//	│ is kept    │ (5xx, no-store)      ▼                      │
//	│            └──► new           abandoned                  │
//	│                                │ TakeOver: a retry runs  │
//	│                                │ AtMostOnce: 409, until  │
//	▼                                ▼ an operator resolves it  │
//	done ── retries: the stored answer ────────────────────────┘
//
// The Middleware holds a handler's answer back until it is stored, so that a client that saw
// success will see it again. A handler that flushes streams, and its answer is stored at its end.
// Handlers run on the server's goroutine, under a context that does not end when the client goes
// away.
package idempotency
