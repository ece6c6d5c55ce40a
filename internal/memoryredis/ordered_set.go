package memoryredis

import (
	"cmp"
	"slices"
	"strconv"
)

// orderedSet is the index of a sorted set. Its entries are sorted by score and then by name. An insertion moves the entries behind it, which
// takes microseconds.
type orderedSet struct {
	entries []entry
	scores  map[string]float64 // by member

	checkedIn int // the run of commandHook in which the number of members was last checked
}

type entry struct {
	score  float64
	member string
}

func compareEntries(a, b entry) (order int) {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.member, b.member))
}

// newOrderedSet returns the index of the members and scores that a ZRANGE WITHSCORES has returned.
func newOrderedSet(reply []any) *orderedSet {
	s := &orderedSet{entries: make([]entry, 0, len(reply)/2), scores: make(map[string]float64, len(reply)/2)}
	for ; len(reply) >= 2; reply = reply[2:] {
		member, _ := reply[0].(string)
		written, _ := reply[1].(string)
		score, _ := strconv.ParseFloat(written, 64) // the server wrote a number
		s.entries = append(s.entries, entry{score, member})
		s.scores[member] = score
	}
	slices.SortFunc(s.entries, compareEntries)
	return s
}

func (s *orderedSet) size() int { return len(s.entries) }

func (s *orderedSet) add(score float64, member string) {
	if old, there := s.scores[member]; there {
		if old == score {
			return
		}
		s.remove([]string{member})
	}
	s.scores[member] = score
	i, _ := s.find(entry{score, member})
	s.entries = slices.Insert(s.entries, i, entry{score, member})
}

func (s *orderedSet) remove(members []string) {
	for _, member := range members {
		score, there := s.scores[member]
		if !there {
			continue
		}
		delete(s.scores, member)
		i, _ := s.find(entry{score, member})
		s.entries = slices.Delete(s.entries, i, i+1)
	}
}

func (s *orderedSet) find(e entry) (index int, found bool) {
	return slices.BinarySearchFunc(s.entries, e, compareEntries)
}

func (s *orderedSet) rank(member string) (index int, found bool) {
	score, found := s.scores[member]
	if !found {
		return 0, false
	}
	return s.find(entry{score, member})
}

// firstIndex returns the index of the first entry for which isInside is true. isInside must also be true for all entries behind it.
func (s *orderedSet) firstIndex(isInside func(entry) bool) int {
	i, _ := slices.BinarySearchFunc(s.entries, true, func(e entry, _ bool) int {
		if isInside(e) {
			return 1
		}
		return -1
	})
	return i
}
