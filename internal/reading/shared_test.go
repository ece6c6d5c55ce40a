package reading_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/reading"
)

// countedSource is a source of values that counts its reads and can block them.
type countedSource struct {
	reads        atomic.Int64
	release      chan struct{} // each read receives from this channel before it returns
	began        chan struct{} // one value for each read that began
	clockSeconds atomic.Int64  // seconds
}

func newCountedSource() *countedSource {
	return &countedSource{release: make(chan struct{}), began: make(chan struct{}, 100)}
}

func (s *countedSource) read(context.Context) (int64, error) {
	n := s.reads.Add(1)
	s.began <- struct{}{}
	<-s.release
	if n == 3 {
		return 0, errors.New("the third fails")
	}
	return n, nil
}

func (s *countedSource) now() time.Time { return time.Unix(s.clockSeconds.Load(), 0) }

func TestManyShareOneReading(t *testing.T) {
	t.Parallel()
	s := newCountedSource()
	shared := reading.New(time.Second, time.Minute, s.now, s.read)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if n, err := shared.Read(t.Context()); n != 1 || err != nil {
				t.Errorf("%d, %v; want the first reading", n, err)
			}
		})
	}
	close(s.release)
	wait.Wait()
	s.clockSeconds.Store(1)
	if n, err := shared.Read(t.Context()); n != 2 || err != nil {
		t.Errorf("after its time: %d, %v; want a second reading", n, err)
	}
}

// A read of the source hangs. Each caller waits as long as its own context allows, and no second read starts.
func TestHangingReadingIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	s := newCountedSource()
	shared := reading.New(time.Second, time.Minute, s.now, s.read)
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := shared.Read(impatient); !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want canceled", err)
		}
		s.clockSeconds.Add(10)
	}
	<-s.began
	close(s.release)
	if n, err := shared.Read(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v; want the reading that hung", n, err)
	}
}

// A read fails. Its error is shared among callers for the same time as a value would be, and not longer.
func TestErrorIsSharedAsAValueIs(t *testing.T) {
	t.Parallel()
	s := newCountedSource()
	close(s.release)
	shared := reading.New(time.Second, time.Minute, s.now, s.read)
	for i, want := range []int64{1, 2, 0, 0, 4} {
		if i != 3 { // this read is in the same second as the previous one
			s.clockSeconds.Add(1)
		}
		n, err := shared.Read(t.Context())
		if n != want || (err != nil) != (want == 0) {
			t.Errorf("reading %d: %d, %v; want %d", i, n, err, want)
		}
	}
}

func TestReadingIsLimited(t *testing.T) {
	t.Parallel()
	shared := reading.New(time.Second, time.Millisecond, time.Now, func(ctx context.Context) (bool, error) {
		<-ctx.Done()
		return true, ctx.Err()
	})
	if _, err := shared.Read(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the limit", err)
	}
}

// A new read is in progress. Until it ends, callers get the previous answer, unless the previous answer is too old.
func TestSparedAnswerServesMeanwhile(t *testing.T) {
	t.Parallel()
	s := newCountedSource()
	shared := reading.NewServingStale(time.Second, time.Minute, time.Minute, s.now, s.read)
	first := make(chan int64)
	go func() {
		n, _ := shared.Read(t.Context())
		first <- n
	}()
	s.release <- struct{}{}
	if n := <-first; n != 1 {
		t.Fatalf("%d, want the first reading", n)
	}
	s.clockSeconds.Store(59)
	for range 3 {
		if n, err := shared.Read(t.Context()); n != 1 || err != nil {
			t.Errorf("while the second is under way: %d, %v; want the first", n, err)
		}
	}
	<-s.began
	<-s.began
	s.clockSeconds.Store(60)
	go func() { s.release <- struct{}{} }()
	if n, err := shared.Read(t.Context()); n != 2 || err != nil {
		t.Errorf("when the first is too old: %d, %v; want the second", n, err)
	}
	if n := s.reads.Load(); n != 2 {
		t.Errorf("%d readings, want 2", n)
	}
}
