package check_test

import (
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// reserve reserves a place of the key "place" for a minute.
func (h *builder) reserve(name string, from, to int, token string) *history.Event {
	e := h.claim(name, from, to, "place", token, "reserve", "held")
	e.TTL, e.PlaceTTL, e.Queued = 0, time.Minute, true
	return e
}

// waits lets a token ask from a reserved place before its turn.
func (h *builder) waits(name string, from, to int, token, place string) *history.Event {
	e := h.claim(name, from, to, "place", token, "try", "held")
	e.From, e.PlaceTTL, e.Queued = place, 0, true
	return e
}

// redeems grants a token the key from a reserved place.
func (h *builder) redeems(name string, from, to int, token, place string, fence uint64) *history.Event {
	e := h.granted(name, from, to, "place", token, "try", fence)
	e.From, e.PlaceTTL = place, 0
	return e
}

// row lets X and W stand in a row of which nothing has come yet, and lets a waiter wait at
// W's place.
func row(h *builder) {
	h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
	h.granted("H claims", 50, 60, "place", "H", "try", 39)
	h.settle("H releases", 240, 250, "place", "H", "release")
	h.reserve("W reserves", 120, 130, "W")
	h.waits("w waits", 160, 170, "w", "W")
}

// joined lets x and w join the queue from X's place, one after the other be granted, and the
// first one abandon its lease.
func joined(h *builder) {
	row(h)
	for i, token := range []string{"x", "w"} {
		h.drop(token + " waits")
		e := h.claim(token+" joins", 180+10*i, 185+10*i, "place", token, "queue", "held")
		e.From = "X"
	}
	h.redeems("x redeems", 255, 260, "x", "X", 40).Mode = "queue"
	h.settle("x releases", 280, 290, "place", "x", "abandon")
	w := h.redeems("w redeems", 295, 300, "w", "X", 41)
	w.Mode, w.Attempt = "queue", 2
}

var placeCases = []historyCase{
	{"a place is redeemed, and another one waits there", "", func(h *builder) {
		h.waits("V waits", 420, 430, "V", "X")
		h.settle("V gives up", 440, 450, "place", "V", "undo").Error = history.Lost
	}},
	{"a waiter at a place gives up, and is answered that it had one", "lease", func(h *builder) {
		h.waits("V waits", 420, 430, "V", "X")
		h.settle("V gives up", 440, 450, "place", "V", "undo")
	}},
	{"a place is redeemed, and is not there", "places", func(h *builder) {
		h.waits("V tries", 420, 430, "V", "X").Queued = false
	}},
	{"a redeemer abandoned its lease, and its place is not there", "places", func(h *builder) {
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"a redeemer abandoned its lease, and its place had a shorter grace from then on", "", func(h *builder) {
		h.at("Z redeems").Grace = 10 * ms
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"two places are redeemed in their order", "", func(h *builder) {
		row(h)
		h.waits("x waits", 180, 190, "x", "X")
		h.redeems("x redeems", 255, 260, "x", "X", 40)
		h.settle("x releases", 300, 310, "place", "x", "release")
		h.redeems("w redeems", 315, 320, "w", "W", 41)
	}},
	{"a place is redeemed before the one in front of it", "order", func(h *builder) {
		row(h)
		h.redeems("w redeems", 255, 260, "w", "W", 40)
	}},
	{"a place is redeemed before the one in front of it, whose grace may be over", "", func(h *builder) {
		row(h)
		h.at("X reserves").Grace = 50 * ms
		h.redeems("w redeems", 255, 260, "w", "W", 40)
	}},
	{"a place is redeemed after a waiter that came before it", "", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.granted("V claims", 245, 256, "place", "V", "queue", 40)
		h.settle("V releases", 270, 280, "place", "V", "release")
		h.redeems("w redeems", 285, 290, "w", "W", 41)
	}},
	{"a place is redeemed before a waiter that came before it", "order", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.redeems("w redeems", 255, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"a place is redeemed before a waiter that came after it", "", func(h *builder) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 140, 150, "place", "V", "queue", "held")
		h.redeems("w redeems", 255, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"two join the queue from one place", "", func(h *builder) { joined(h) }},
	{"a waiter that joined from a place is passed by a waiter that came after it", "order", func(h *builder) {
		joined(h)
		h.drop("x redeems", "x releases")
		h.granted("V claims", 255, 260, "place", "V", "try", 40)
		h.settle("V releases", 270, 280, "place", "V", "release")
	}},
	{"held only by a claim from a place that was given up", "held", func(h *builder) {
		h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
		h.waits("x waits", 180, 190, "x", "X")
		h.settle("X gives up", 200, 210, "place", "X", "release")
		h.claim("V is held", 300, 310, "place", "V", "try", "held")
	}},
}
