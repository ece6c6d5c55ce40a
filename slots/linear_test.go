package slots_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fleetslots/dispatcher/slots"
)

const linearCapacity = 3

// input is an operation on the semaphore; lease is held or wanted.
type input struct {
	release bool
	lease   string
}

// output is its answer: the slot, -1 for full or nothing freed.
type output struct {
	slot  int // of an acquire
	freed bool
}

// sequential is the semaphore as one thread would see it: lowest free first.
func sequential() porcupine.Model {
	type state [linearCapacity]string // who holds each slot
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(before, in, out any) (bool, any) {
			s, op, got := before.(state), in.(input), out.(output) //nolint:errcheck // the model's own types
			if !op.release {
				for i, holder := range s {
					if holder == "" {
						s[i] = op.lease
						return got.slot == i, s
					}
				}
				return got.slot == -1, s
			}
			for i, holder := range s {
				if holder == op.lease {
					s[i] = ""
					return got.freed, s
				}
			}
			return !got.freed, s
		},
	}
}

// TestLinearizable: what concurrent clients saw is explained by some order of
// their calls, each at one instant between its beginning and its end.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	const clients, rounds = 8, 20
	s := newServer(t, backends()[0])
	pool := s.poolOf(t, linearCapacity)
	var clock atomic.Int64 // orders beginnings and ends; no wall clock is that fine
	history := make([][]porcupine.Operation, clients)
	var wg, first sync.WaitGroup
	first.Add(clients) // nobody leaves before all have asked once: the pool was full
	for c := range clients {
		wg.Go(func() {
			do := func(in input, call func() (output, error)) output {
				op := porcupine.Operation{ClientId: c, Input: in, Call: clock.Add(1)}
				out, err := call()
				if err != nil {
					t.Errorf("%+v: %v", in, err)
				}
				op.Output, op.Return = out, clock.Add(1)
				history[c] = append(history[c], op)
				return out
			}
			for i := range rounds {
				lease := fmt.Sprintf("%d.%d.a", c, i)
				release := func() (output, error) {
					freed, _, err := s.Release(t.Context(), pool, slots.Pace{}, []string{lease})
					return output{freed: err == nil && freed[0]}, err
				}
				do(input{lease: lease}, func() (output, error) {
					out, _, err := s.Acquire(t.Context(), pool, slots.Pace{}, requests(time.Minute, lease))
					if err != nil || out[0].Status != slots.StatusAcquired {
						return output{slot: -1}, err
					}
					return output{slot: out[0].Slot}, nil
				})
				if i == 0 {
					first.Done()
					first.Wait()
				}
				do(input{release: true, lease: lease}, release)
				do(input{release: true, lease: lease}, release) // once too often
			}
		})
	}
	wg.Wait()
	var all []porcupine.Operation
	refused := 0
	for _, h := range history {
		all = append(all, h...)
		for _, op := range h {
			if op.Output == (output{slot: -1}) {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("the pool was never full: this history shows little")
	}
	if got := porcupine.CheckOperationsTimeout(sequential(), all, time.Minute); got != porcupine.Ok {
		t.Errorf("history of %d operations: %v", len(all), got)
	}
}
