package idempotency

import "net/http"

// holdBack accepts a notification, and does not pass it on: it would end a guarded call, whose retry
// then found no outcome.
func (x *exchange) holdBack() {
	x.event.Status = http.StatusAccepted
	x.w.WriteHeader(http.StatusAccepted)
	x.observe(EventHeldBack)
}

// keepSession refuses to end a session in which a guarded call runs. Servers may refuse that at any
// time (405).
func (x *exchange) keepSession() {
	x.w.Header().Set("Allow", "GET, POST")
	x.refuseUnread(EventHeldBack, problemSession)
}
