package check_test

import (
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// reserve reserves a place of the key "place" for a minute.
func (h *tale) reserve(name string, from, to int, token string) *history.Event {
	e := h.claim(name, from, to, "place", token, "reserve", "held")
	e.TTL, e.Place, e.Queued = 0, time.Minute, true
	return e
}

// waits lets a token wait at a reserved place.
func (h *tale) waits(name string, from, to int, token, place string) *history.Event {
	e := h.claim(name, from, to, "place", token, "try", "held")
	e.Redeems, e.Queued = place, true
	return e
}

// told tells a token that has waited at a reserved place since a moment that it was granted.
func (h *tale) told(name string, since, by int, token, place string, fence uint64) *history.Event {
	e := h.hears(name, since, by, "place", token, fence)
	e.Redeems = place
	return e
}

// absent lets Z wait for Y at X's place, and tells it its grant when Y abandons.
func absent(h *tale) {
	h.drop("Z redeems")
	h.waits("Z waits", 220, 230, "Z", "X")
	h.told("Z is told", 220, 315, "Z", "X", 41).Attempt = 2
	h.renew("Z renews", 400, 410, "place", "Z")
}

// row lets X and W stand in a row of which nothing has come yet, and somebody wait at W's
// place.
func row(h *tale) {
	h.drop("Y redeems", "Y abandons", "Z redeems", "Z releases")
	h.granted("H claims", 50, 60, "place", "H", "try", 39)
	h.settle("H releases", 240, 250, "place", "H", "release")
	h.reserve("W reserves", 120, 130, "W")
	h.waits("w waits", 160, 170, "w", "W")
}

var placeCases = []tell{
	{"a redeemer is told its grant", "", absent},
	{"a redeemer is told its grant, and another one waits at its place", "", func(h *tale) {
		absent(h)
		h.waits("V waits", 420, 430, "V", "X")
		h.settle("V gives up", 440, 450, "place", "V", "undo").Error = history.Lost
	}},
	{"a redeemer is told its grant, and asks again", "", func(h *tale) {
		absent(h)
		e := h.granted("Z asks", 320, 330, "place", "Z", "try", 41)
		e.Redeems, e.Attempt = "X", 2
	}},
	{"a redeemer was told its grant while it gave up", "", func(h *tale) {
		absent(h)
		h.drop("Z renews", "Z releases")
		h.settle("Z gives up", 305, 312, "place", "Z", "undo")
		h.granted("V redeems", 400, 410, "place", "V", "try", 42).Redeems = "X"
		h.at("V redeems").Attempt = 2
	}},
	{"a redeemer gave up what it was never told of", "", func(h *tale) {
		absent(h)
		h.drop("Z is told", "Z renews", "Z releases")
		h.settle("Z gives up", 320, 330, "place", "Z", "undo")
	}},
	{"a redeemer is told its grant while another one holds", "lease", func(h *tale) {
		absent(h)
		h.at("Z is told").Return = 290 * ms
	}},
	{"another one is granted while a redeemer holds what it was told", "lease", func(h *tale) {
		absent(h)
		h.granted("V claims", 420, 430, "place", "V", "try", 42)
	}},
	{"a redeemer was told its grant, and renews late", "lease", func(h *tale) {
		absent(h)
		h.at("Z renews").Call, h.at("Z renews").Return = 1500*ms, 1510*ms
		h.drop("Z releases")
	}},
	{"a redeemer was told its grant, and its place is not there", "places", func(h *tale) {
		absent(h)
		h.waits("V tries", 420, 430, "V", "X").Queued = false
	}},
	{"a redeemer was told its grant and abandoned it, and its place is not there", "places", func(h *tale) {
		absent(h)
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"a redeemer was told its grant and its place had a shorter hold from then on", "", func(h *tale) {
		absent(h)
		h.at("Z is told").Hold, h.at("Z waits").Hold = 10*ms, 10*ms
		h.at("Z releases").Outcome = "abandon"
		h.waits("V tries", 520, 530, "V", "X").Queued = false
	}},
	{"a redeemer was told its grant, and its place is granted with another permit", "places", func(h *tale) {
		absent(h)
		h.granted("V redeems", 420, 430, "place", "V", "try", 42).Redeems = "X"
		for _, e := range h.events {
			if e.Key == "place" {
				e.Permits = 2
			}
		}
	}},
	{"two redeemers are told their grants in the order of their places", "", func(h *tale) {
		row(h)
		h.waits("x waits", 180, 190, "x", "X")
		h.told("x is told", 180, 260, "x", "X", 40)
		h.settle("x releases", 300, 310, "place", "x", "release")
		h.told("w is told", 160, 320, "w", "W", 41)
	}},
	{"a redeemer is told its grant before the place in front of its own", "order", func(h *tale) {
		row(h)
		h.told("w is told", 160, 260, "w", "W", 40)
	}},
	{"a redeemer is told its grant before the one in front of it", "order", func(h *tale) {
		row(h)
		h.waits("x waits", 180, 190, "x", "X")
		h.told("w is told", 160, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.waits("x waits on", 300, 310, "x", "X")
	}},
	{"a redeemer is told its grant after one who came before its place", "", func(h *tale) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.granted("V claims", 245, 256, "place", "V", "queue", 40)
		h.settle("V releases", 270, 280, "place", "V", "release")
		h.told("w is told", 160, 290, "w", "W", 41)
	}},
	{"a redeemer is told its grant before one who came before its place", "order", func(h *tale) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 70, 80, "place", "V", "queue", "held")
		h.told("w is told", 160, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"a redeemer is told its grant before one who came after its place", "", func(h *tale) {
		row(h)
		h.drop("X reserves")
		h.claim("V waits", 140, 150, "place", "V", "queue", "held")
		h.told("w is told", 160, 260, "w", "W", 40)
		h.settle("w releases", 270, 280, "place", "w", "release")
		h.granted("V claims", 285, 290, "place", "V", "queue", 41)
	}},
	{"a redeemer that was killed may have had its grant, and its place ended with a hold of its own", "", func(h *tale) {
		row(h)
		h.drop("W reserves", "w waits")
		h.waits("x waits", 180, 190, "x", "X").Hold = 50 * ms
		h.add("killed", 200, 201, history.Event{Kind: history.Killed, Process: process("x")})
		h.granted("V claims", 1400, 1410, "place", "V", "try", 41).Attempt = 2
		h.waits("U tries", 1420, 1430, "U", "X").Queued = false
	}},
}
