package idempotency

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Problem is a refusal of the Middleware. Options.WriteProblem says in which shape it is sent.
type Problem struct {
	// Name is the fragment of the type's address. Programs may rely on it.
	Name string
	// Title says the same to people.
	Title string
	// Status of the answer.
	Status int
	// Detail says more. It has no text of the request.
	Detail string
	// Instance is a URI that names this occurrence; "" for none.
	Instance string
	// RetryAfter, if not 0, says when to try again; sent in whole seconds, rounded up.
	RetryAfter time.Duration

	code string // of gRPC and Connect; "": as the status says
}

// The problems. Each is a section of docs/reference/http.md.
var (
	problemKeyRequired = Problem{Name: "key-required", Status: 400, Title: "An Idempotency-Key is required",
		Detail: "Send the header Idempotency-Key with a new value, such as a UUID, and the same value with each retry."}
	problemKeyInvalid = Problem{Name: "key-invalid", Status: 400, Title: "The Idempotency-Key is malformed"}
	problemBodyBroken = Problem{Name: "body-unreadable", Status: 400, Title: "The request's body could not be read",
		Detail: "It ended early or is malformed. Nothing was run."}
	problemTypes = Problem{Name: "body-unreadable", Status: 400, Title: problemBodyBroken.Title,
		Detail: "The request has several Content-Type lines. Send one. Nothing was run."}
	problemNoMessage = Problem{Name: "body-unreadable", Status: 400, Title: problemBodyBroken.Title,
		Detail: "It is not a JSON-RPC message in UTF-8. Nothing was run."}
	problemCall = Problem{Name: "call-refused", Status: 400, Title: "This call of a tool cannot be guarded",
		Detail: "Send it alone, and not in a batch, with an id that is a string or a number. Nothing was run."}
	problemSession = Problem{Name: "session-in-use", Status: 405, Title: "A call of this session still runs",
		Detail: "The session ends when the server ends it. The call is not cancelled, and a retry of it gets its answer."}
	problemMethod = Problem{Name: "method-refused", Status: 405, Title: "CONNECT is not served here",
		Detail: "This server does not open tunnels."}
	problemBodyTimeout = Problem{Name: "body-timeout", Status: 408, Title: "The request's body did not arrive",
		Detail: "The client sent nothing for too long. Nothing was run."}
	problemStream = Problem{Name: "stream-refused", Status: 400, Title: "A stream cannot be guarded",
		Detail: "The request did not end after its first message. Send it without a key. Nothing was run."}
	problemInProgress = Problem{Name: "in-progress", Status: 409, code: "aborted", Title: "A request with this Idempotency-Key is still running",
		Detail: "Retry with the same key. When the request has finished, a retry gets its answer."}
	problemUnknown = Problem{Name: "outcome-unknown", Status: 409, code: "failed_precondition", Title: "The outcome of an earlier attempt is unknown",
		Detail: "An earlier attempt with this Idempotency-Key ended without an answer. It may or may not have taken effect. The request is not run again until an operator has resolved the key."}
	problemNotKept = Problem{Name: "answer-not-kept", Status: 410, code: "already_exists", Title: "The request was served, but its answer was not kept",
		Detail: "The answer was too long to be kept, or cannot be read. The request is not run again under this Idempotency-Key."}
	problemTooLarge = Problem{Name: "body-too-large", Status: 413, code: "resource_exhausted", Title: "The request's body is too large",
		Detail: "What it contains is longer than the server looks into, or has more parts. Nothing was run."}
	problemMismatch = Problem{Name: "key-reused", Status: 422, Title: "The Idempotency-Key was used for another request",
		Detail: "A retry must repeat the request: method, target, Content-Type, Content-Encoding and body. A new request needs a new key."}
	problemHungUp = Problem{Name: "origin-hung-up", Status: 502, Title: "The origin hung up",
		Detail: "The request was sent, and the connection ended before an answer came. The request may or may not have taken effect."}
	problemBrokeOff = Problem{Name: "origin-broke-off", Status: 502, Title: "The origin's answer broke off",
		Detail: "The request was sent, and its answer is incomplete. The request may or may not have taken effect."}
	problemUnreached = Problem{Name: "origin-unreachable", Status: 502, Title: "The origin could not be reached",
		Detail: "Nothing was run. Retry with the same key."}
	problemUnavailable = Problem{Name: "store-unavailable", Status: 503, Title: "The store of Idempotency-Keys does not answer",
		Detail: "Nothing was run. Retry with the same key.", RetryAfter: time.Second}
	problemOverloaded = Problem{Name: "overloaded", Status: 503, Title: "The server has reached a bound of its requests with an Idempotency-Key",
		Detail: "Nothing was run. Retry with the same key.", RetryAfter: time.Second}
	problemNoRoom = Problem{Name: "no-room", Status: 503, Title: "The server had no room for the request's body",
		Detail: "Nothing was run. Retry with the same key.", RetryAfter: time.Second}
	problemLost = Problem{Name: "lease-lost", Status: 503, Title: "Another attempt may run in place of this one",
		Detail: "This attempt lost its lease of the key while it ran. Retry with the same key to get the answer.", RetryAfter: time.Second}
	problemRolledBack = Problem{Name: "rolled-back", Status: 503, Title: "The request's transaction was rolled back",
		Detail: "Nothing was done. Retry with the same key.", RetryAfter: time.Second}
	problemEnded = Problem{Name: "transaction-ended", Status: 500, code: "internal", Title: "The handler ended the request's transaction itself",
		Detail: "What the handler did may have taken effect, and its answer is not kept. This is a defect of the server."}
	problemUnsure = Problem{Name: "commit-unknown", Status: 503, Title: "It is not known whether the request was served",
		Detail: "The connection to the database was lost during the commit. Retry with the same key: the request runs once at most, and a retry gets an answer.", RetryAfter: time.Second}
	problemTimedOut = Problem{Name: "origin-timeout", Status: 504, code: "deadline_exceeded", Title: "The origin did not answer in time",
		Detail: "The request was sent. It may or may not have taken effect."}
)

// tooLarge returns the problem of a body of more bytes than that.
func tooLarge(most int64) Problem {
	p := problemTooLarge
	p.Detail = fmt.Sprintf("It can be at most %d bytes. Nothing was run.", most)
	return p
}

// FailureProblem returns the problem that answers a Failure. A handler that serves a request
// without a guard writes it itself.
func FailureProblem(f Failure) Problem {
	return [...]Problem{problemHungUp, Unreached: problemUnreached, HungUp: problemHungUp, TimedOut: problemTimedOut, BrokeOff: problemBrokeOff}[f]
}

// clearContent removes the fields that described another answer.
func clearContent(h http.Header) {
	for _, name := range []string{"Content-Encoding", "Content-Length", "Content-Range", "Etag", "Last-Modified", "Trailer", "Transfer-Encoding"} {
		delete(h, name)
	}
	h.Set("Cache-Control", "no-store")
}

// retryAfterOf returns a problem's Retry-After in whole seconds.
func retryAfterOf(p Problem) string {
	return strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10)
}
