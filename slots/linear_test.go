package slots_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fleetslots/dispatcher/slots"
)

const linearCapacity = 3

// callInput is one call of the semaphore for a lease: it acquires or releases a slot.
type callInput struct {
	release bool
	lease   string
}

// callOutput is the answer of the semaphore to a callInput.
type callOutput struct {
	slot  int // slot of an acquire; -1 if the pool is full
	freed bool
}

// sequentialModel is the model of a semaphore that serves one call at a time. An acquire gets the free slot with
// the lowest number.
func sequentialModel() porcupine.Model {
	type state [linearCapacity]string // lease that holds each slot; "" for a free slot
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(before, in, out any) (bool, any) {
			s, op, got := before.(state), in.(callInput), out.(callOutput) //nolint:errcheck // the model's own types
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

// TestLinearizable checks that the semaphore is linearizable: some sequential order of the calls must explain all answers that concurrent
// clients received. In this order, each call takes effect at one instant between its start and its end.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	const clients, rounds = 8, 20
	s := newRedisSemaphore(t)
	pool := s.restorePool(t, linearCapacity)
	var clock atomic.Int64 // orders the starts and ends of calls; no wall clock is precise enough
	all := make([]recordingClient, clients)
	var wg, first sync.WaitGroup
	first.Add(clients) // no client releases before all clients have asked once, so the pool was full
	for c := range all {
		all[c] = recordingClient{redisSemaphore: s, t: t, pool: pool, client: c, clock: &clock}
		wg.Go(func() {
			for i := range rounds {
				lease := fmt.Sprintf("%d.%d.a", c, i)
				all[c].recordCall(callInput{lease: lease})
				if i == 0 {
					first.Done()
					first.Wait()
				}
				for range 2 { // the second release is a repetition
					all[c].recordCall(callInput{release: true, lease: lease})
				}
			}
		})
	}
	wg.Wait()
	var history []porcupine.Operation
	for _, o := range all {
		history = append(history, o.history...)
	}
	refused := func(op porcupine.Operation) bool { return op.Output == callOutput{slot: -1} }
	if !slices.ContainsFunc(history, refused) {
		t.Error("the pool was never full: this history shows little")
	}
	if got := porcupine.CheckOperationsTimeout(sequentialModel(), history, time.Minute); got != porcupine.Ok {
		t.Errorf("history of %d operations: %v", len(history), got)
	}
}

// recordingClient is a client that records its calls and their answers.
type recordingClient struct {
	*redisSemaphore

	t       *testing.T
	pool    string
	client  int
	clock   *atomic.Int64
	history []porcupine.Operation
}

func (o *recordingClient) recordCall(in callInput) {
	op := porcupine.Operation{ClientId: o.client, Input: in, Call: o.clock.Add(1)}
	out, err := o.call(in)
	if err != nil {
		o.t.Errorf("%+v: %v", in, err)
	}
	op.Output, op.Return = out, o.clock.Add(1)
	o.history = append(o.history, op)
}

func (o *recordingClient) call(in callInput) (callOutput, error) {
	if in.release {
		freed, _, err := o.Release(o.t.Context(), o.pool, slots.Pace{}, []string{in.lease})
		return callOutput{freed: err == nil && freed[0]}, err
	}
	out, _, err := o.Acquire(o.t.Context(), o.pool, slots.Pace{}, newRequests(time.Minute, in.lease))
	if err != nil || out[0].Status != slots.StatusAcquired {
		return callOutput{slot: -1}, err
	}
	return callOutput{slot: out[0].Slot}, nil
}
