package memoryredis

import (
	"math"
	"strconv"
	"strings"

	"github.com/alicebob/miniredis/v2/server"
)

// queries has a function for each range command that the index answers. The function gets the arguments after the key. It returns false for a
// form of the command that the index cannot answer. The project's scripts use no such form.
var queries = map[string]func(s *orderedSet, c *server.Peer, args []string) bool{ //nolint:gochecknoglobals // a constant
	"ZCOUNT":        (*orderedSet).writeCountByScore,
	"ZLEXCOUNT":     (*orderedSet).writeCountByName,
	"ZRANGEBYLEX":   (*orderedSet).writeRangeByName,
	"ZRANGEBYSCORE": (*orderedSet).writeRangeByScore,
	"ZRANK":         (*orderedSet).writeRank,
}

func (s *orderedSet) writeCountByScore(peer *server.Peer, args []string) (answered bool) {
	from, to, ok := s.scoreRange(args)
	if ok = ok && len(args) == 2; ok {
		peer.WriteInt(to - from)
	}
	return ok
}

func (s *orderedSet) writeCountByName(peer *server.Peer, args []string) (answered bool) {
	from, to, ok := s.nameRange(args)
	if ok = ok && len(args) == 2; ok {
		peer.WriteInt(to - from)
	}
	return ok
}

func (s *orderedSet) writeRangeByScore(peer *server.Peer, args []string) (answered bool) {
	from, to, ok := s.scoreRange(args)
	return ok && s.writeRange(peer, from, to, args[2:])
}

func (s *orderedSet) writeRangeByName(peer *server.Peer, args []string) (answered bool) {
	from, to, ok := s.nameRange(args)
	return ok && s.writeRange(peer, from, to, args[2:])
}

func (s *orderedSet) writeRank(peer *server.Peer, args []string) (answered bool) {
	if len(args) != 1 {
		return false
	}
	if i, found := s.rank(args[0]); found {
		peer.WriteInt(i)
	} else {
		peer.WriteNull()
	}
	return true
}

// writeRange writes the members with from <= index < to to the client. options is empty or LIMIT offset count. A negative count means all.
func (s *orderedSet) writeRange(peer *server.Peer, from, to int, options []string) (answered bool) {
	if len(options) != 0 {
		if len(options) != 3 || !strings.EqualFold(options[0], "LIMIT") {
			return false
		}
		offset, err1 := strconv.Atoi(options[1])
		count, err2 := strconv.Atoi(options[2])
		if err1 != nil || err2 != nil || offset < 0 {
			return false
		}
		from = min(from+offset, to)
		if count >= 0 {
			to = min(to, from+count)
		}
	}
	peer.WriteLen(to - from)
	for _, e := range s.entries[from:to] {
		peer.WriteBulk(e.member)
	}
	return true
}

// scoreRange returns the indexes (from <= index < to) of the scores between args[0] and args[1].
func (s *orderedSet) scoreRange(args []string) (from, to int, ok bool) {
	if len(args) < 2 {
		return 0, 0, false
	}
	low, lowOpen, ok1 := parseScore(args[0])
	high, highOpen, ok2 := parseScore(args[1])
	from = s.firstIndex(func(e entry) bool { return e.score > low || !lowOpen && e.score == low })
	to = s.firstIndex(func(e entry) bool { return e.score > high || highOpen && e.score == high })
	return from, max(from, to), ok1 && ok2
}

// parseScore parses a bound of a range of scores, such as `5`, `(5` or `-inf`. isOpen is true if the bound itself is not in the range.
func parseScore(bound string) (score float64, isOpen, ok bool) {
	number, isOpen := strings.CutPrefix(bound, "(")
	score, err := strconv.ParseFloat(number, 64)
	return score, isOpen, err == nil && !math.IsNaN(score)
}

// nameRange returns the indexes (from <= index < to) of the names between args[0] and args[1]. ok is false if the members have different
// scores, because Redis then defines no order of names.
func (s *orderedSet) nameRange(args []string) (from, to int, ok bool) {
	if len(args) < 2 || s.entries[0].score != s.entries[len(s.entries)-1].score {
		return 0, 0, false
	}
	isAtStart, ok1 := parseNameBound(args[0], false)
	isBehind, ok2 := parseNameBound(args[1], true)
	if !ok1 || !ok2 {
		return 0, 0, false
	}
	from = s.firstIndex(func(e entry) bool { return isAtStart(e.member) })
	to = s.firstIndex(func(e entry) bool { return isBehind(e.member) })
	return from, max(from, to), true
}

// parseNameBound parses a bound of a range of names: "-", "+", "[name" or "(name". If isEnd is false, isReached reports whether a name is at or
// after this start of the range. If isEnd is true, isReached reports whether a name is after this end of the range.
func parseNameBound(bound string, isEnd bool) (isReached func(name string) bool, ok bool) {
	if bound == "-" || bound == "+" {
		return func(string) bool { return bound == "-" }, true
	}
	if bound == "" || bound[0] != '[' && bound[0] != '(' {
		return nil, false
	}
	name, isOpen := bound[1:], bound[0] == '('
	countsEqual := isOpen == isEnd // "[a" begins at a, and "(a" ends before a
	return func(other string) bool { return other > name || countsEqual && other == name }, true
}
