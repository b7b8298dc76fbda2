package dialect

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/internal/content"
)

// A reply is the response of JSON-RPC in an answer.
type reply struct {
	text     []byte // nil if it is longer than what is stored
	from, to int    // where its id is
	status   int    // that it is treated by
}

// replies finds the responses of JSON-RPC in an answer while it passes. It keeps the first of them, and
// of everything else no more than the message that passes, because the number and the length of
// notifications say nothing of the response.
type replies struct {
	stream bool  // an event stream; otherwise the answer is one message
	limit  int64 // of the response, and of all that is kept
	events eventReader
	text   []byte    // of the message so far, unless it is too long
	short  *skeleton // of a message that is too long
	first  *reply
	n      int // responses
}

// newReplies returns what finds the responses in an answer with that header.
func newReplies(h http.Header, limit int64) *replies {
	r := &replies{limit: limit, stream: strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/event-stream")}
	r.events.data, r.events.end = r.add, r.end
	return r
}

// write takes the next part of the answer.
func (r *replies) write(p []byte) {
	if !r.stream {
		r.add(p)
		return
	}
	r.events.write(p)
}

// all takes an answer that does not change any more.
func (r *replies) all(body []byte) {
	if r.stream {
		r.write(body)
	} else {
		r.text = body
	}
}

// finish takes the end of the answer.
func (r *replies) finish() {
	if r.stream {
		r.events.finish()
	} else {
		r.end(true)
	}
}

// add takes the next part of a message.
func (r *replies) add(p []byte) {
	left := r.limit - int64(len(r.text))
	if r.first != nil {
		left -= int64(len(r.first.text))
	}
	switch {
	case r.short != nil:
		r.short.write(p)
	case int64(len(p)) > left:
		r.short = new(skeleton)
		r.short.write(r.text)
		r.short.write(p)
		r.text = nil
	default:
		r.text = append(r.text, p...)
	}
}

// end takes the end of a message. counts says that clients read it.
func (r *replies) end(counts bool) {
	text, short := r.text, r.short
	r.text, r.short = nil, nil
	if !counts {
		return
	}
	var one *reply
	switch {
	case short == nil:
		one = replyOf(text)
	case short.full():
		one = &reply{status: http.StatusOK} // a retry must not run because of a message that nobody has read
	default:
		if one = replyOf(short.text); one != nil {
			one.text = nil
		}
	}
	if one == nil {
		return
	}
	if r.n++; r.n == 1 {
		r.first = one
	}
}

// replyOf reads a response. It returns nil for any other text.
func replyOf(text []byte) *reply {
	var result result
	r, answers, failed := &reply{text: text, status: http.StatusOK}, false, false
	d := content.NewDocument(content.Of(text))
	if first, _ := d.Token(); first != json.Delim('{') {
		return nil
	}
	err := d.EachMember(func(name string) error {
		var value json.RawMessage
		err := d.Decode(&value)
		switch {
		case name == "id" && r.to > 0:
			return content.ErrAmbiguous
		case name == "id":
			r.to = int(d.InputOffset())
			r.from = r.to - len(value)
		case name == "error" && string(value) != "null": // which some servers write beside a result
			failed, answers = true, true
		case name == "result":
			result.read(value)
			answers = true
		}
		return err
	})
	switch {
	case err != nil || d.End() != nil || r.to == 0 || !answers:
		return nil
	case failed || result.failed:
		r.status = http.StatusInternalServerError
	case result.asks:
		r.status = http.StatusConflict
	}
	return r
}

// A result is what the result of a call says of itself.
type result struct {
	failed bool // or its task has
	asks   bool // for more input
}

// read reads a result. What is of another type than it should be says nothing.
func (r *result) read(text json.RawMessage) {
	var members, task map[string]json.RawMessage // a struct would take iserror for isError
	var kind, status string
	_ = json.Unmarshal(text, &members)
	_ = json.Unmarshal(members["resultType"], &kind)
	if kind == "task" {
		task = members
	} else {
		_ = json.Unmarshal(members["task"], &task) // of revision 2025-11-25
	}
	_ = json.Unmarshal(task["status"], &status)
	r.failed = string(members["isError"]) == "true" || status == "failed" || status == "cancelled"
	r.asks = kind == "input_required"
}

// AnswersCall reports whether clients of MCP take a text for the response to a call: of version 2.0, with
// a result or an error that is an object, and not both.
func AnswersCall(text []byte) bool {
	var m struct {
		version       string
		result, error map[string]json.RawMessage
	}
	d := content.NewDocument(content.Of(text))
	first, _ := d.Token()
	all, err := d.Members(first)
	if err != nil || replyOf(text) == nil || (all["result"] == nil) == (all["error"] == nil) {
		return false
	}
	_ = json.Unmarshal(all["jsonrpc"], &m.version) // what is of another type is wrong
	_ = json.Unmarshal(all["result"], &m.result)
	_ = json.Unmarshal(all["error"], &m.error)
	return m.version == "2.0" && (m.result != nil || m.error != nil)
}

// TextAnswer returns the response to a call whose result is a text. The id is to be replaced, as that of a
// stored response.
func TextAnswer(text string) []byte {
	type part struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	type result struct {
		Content []part `json:"content"`
	}
	answer, _ := json.Marshal(struct { // which cannot fail
		Version string `json:"jsonrpc"`
		ID      int    `json:"id"`
		Result  result `json:"result"`
	}{"2.0", 0, result{[]part{{"text", text}}}})
	return answer
}
