package main

import "time"

// Memory is what memstore costs: no calls, and memory of the process.
type Memory struct{}

// Name implements Store.
func (Memory) Name() string { return "memory" }

// Claim implements Store.
func (Memory) Claim(Shape, int) Cost { return Cost{} }

// Renew implements Store.
func (Memory) Renew(Shape, int) Cost { return Cost{} }

// Release implements Store.
func (Memory) Release(Shape, int) Cost { return Cost{} }

// Keep implements Store.
func (Memory) Keep(Shape, int) Cost { return Cost{} }

// Replay implements Store.
func (Memory) Replay(Shape, int) Cost { return Cost{} }

// Join implements Store.
func (Memory) Join(Shape, int) Cost { return Cost{} }

// Ask implements Store.
func (Memory) Ask(Shape, int) Cost { return Cost{} }

// HandOver implements Store.
func (Memory) HandOver(Shape, int) Cost { return Cost{} }

// Job implements Store.
func (Memory) Job(Shape) Cost { return Cost{} }

// Idle implements Store.
func (Memory) Idle(float64, time.Duration) Cost { return Cost{} }

// Polls implements Store.
func (Memory) Polls(Shape, int, int) Cost { return Cost{} }

// Connections implements Store.
func (Memory) Connections() (least, most int) { return 0, 0 }

// Limit implements Store.
func (Memory) Limit() int { return 0 }

// Record implements Store.
func (Memory) Record(s Shape) float64 { return float64(300 + s.Key + s.Data) }

// Lease implements Store.
func (Memory) Lease(s Shape) float64 { return float64(420 + s.Key) }

// Place implements Store.
func (Memory) Place(s Shape) float64 { return float64(330) }

// Sweep implements Store.
func (Memory) Sweep(Shape, int) Cost { return Cost{} }
