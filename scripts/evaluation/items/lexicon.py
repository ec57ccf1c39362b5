"""The words that stories, chats and tool calls are made of; some need several bytes a letter."""

NAMES = (
    "Mia", "Tom", "Lily", "Ben", "Anna", "Sam", "Lucy", "Max", "Nora", "Leo", "Ella", "Jack",
    "Zoë", "Omar", "Rosa", "Ivan", "Maya", "Noah", "Emma", "Finn", "Sara", "Hugo", "Ada", "Theo",
    "José", "Clara", "Oscar", "Ruby", "Amir", "Yuki", "Kofi", "Lena", "小明", "Otto",
    "Nina", "Igor", "Alice", "Bruno", "Carla", "David", "Elsa", "Frank", "Grace", "Henry", "Iris",
    "Jonas", "Kira", "Luis", "Marta", "Nils", "Olga", "Paul", "Rita", "Simon", "Tara", "Victor",
    "Wanda", "Yara", "Søren", "Chloé", "Иван", "美咲",
)  # fmt: skip
ANIMALS = (
    "fox", "rabbit", "bear", "owl", "cat", "dog", "mouse", "frog", "duck", "horse", "turtle",
    "squirrel", "hedgehog", "lion", "elephant", "goat", "wolf", "sheep", "pony",
    "penguin", "parrot", "donkey", "dragon", "beaver", "otter", "badger", "camel", "whale",
)  # fmt: skip
TRAITS = (
    "little", "brave", "kind", "curious", "clever", "shy", "happy", "quiet", "cheerful", "gentle",
    "lonely", "proud", "young", "wise", "funny", "tiny", "polite", "sleepy", "patient", "honest",
)  # fmt: skip
PLACES = (
    "forest", "village", "garden", "castle", "valley", "meadow", "farm", "harbor", "mountain",
    "lake", "island", "city", "desert", "library", "market", "palace", "school", "tower", "orchard",
    "beach", "cave", "jungle",
)  # fmt: skip
THINGS = (
    "kite", "lantern", "map", "key", "ball", "book", "boat", "flute", "crown", "drum", "hat",
    "basket", "bell", "stone", "star", "clock", "mirror", "ring", "candle", "ladder", "umbrella",
    "violin", "wagon", "feather", "button", "blanket", "bottle", "compass", "puzzle", "shovel",
)  # fmt: skip
COLORS = (
    "red", "blue", "green", "golden", "silver", "yellow", "purple", "white",
    "black", "brown", "orange", "pink",
)  # fmt: skip
FOODS = (
    "bread", "apples", "honey", "soup", "cake", "berries", "cheese", "pancakes", "noodles", "rice",
    "carrots", "cherries", "cookies", "grapes", "muffins", "pears", "plums", "potatoes", "salad",
    "tomatoes", "walnuts",
)  # fmt: skip
WEATHERS = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CITIES = (
    "Oslo", "Paris", "Lima", "Cairo", "Rome", "Tokyo", "Delhi", "Berlin", "Madrid", "Boston",
    "Sydney", "Nairobi", "Dublin", "Vienna", "Zürich", "Lisbon", "Athens", "Seoul", "Hanoi",
    "Prague", "Toronto", "Havana", "Quito", "Warsaw", "São Paulo", "東京", "北京", "Kyiv",
    "Ankara", "Bogotá", "Brussels", "Budapest", "Copenhagen", "Helsinki", "Jakarta", "Manila",
    "Montréal", "Munich", "Naples", "Reykjavík", "Riga", "Santiago", "Singapore", "Sofia",
    "Stockholm", "Tallinn", "Tunis", "Vilnius", "Zagreb",
)  # fmt: skip
CAPITALS = {
    "France": "Paris", "Norway": "Oslo", "Peru": "Lima", "Egypt": "Cairo", "Italy": "Rome",
    "Japan": "Tokyo", "India": "Delhi", "Germany": "Berlin", "Spain": "Madrid", "Kenya": "Nairobi",
    "Ireland": "Dublin", "Austria": "Vienna", "Portugal": "Lisbon", "Greece": "Athens",
    "South Korea": "Seoul", "Vietnam": "Hanoi", "Cuba": "Havana", "Poland": "Warsaw",
    "Ecuador": "Quito", "Ukraine": "Kyiv", "Turkey": "Ankara", "Colombia": "Bogotá",
    "Belgium": "Brussels", "Hungary": "Budapest", "Denmark": "Copenhagen", "Finland": "Helsinki",
    "Indonesia": "Jakarta", "Iceland": "Reykjavík", "Latvia": "Riga", "Chile": "Santiago",
    "Bulgaria": "Sofia", "Sweden": "Stockholm", "Estonia": "Tallinn", "Tunisia": "Tunis",
    "Lithuania": "Vilnius", "Croatia": "Zagreb",
}  # fmt: skip
SOUNDS = {
    "cat": "meow", "dog": "woof", "duck": "quack", "cow": "moo", "sheep": "baa", "frog": "croak",
    "owl": "hoot", "lion": "roar", "horse": "neigh", "mouse": "squeak", "bee": "buzz",
    "pig": "oink", "snake": "hiss", "wolf": "howl", "hen": "cluck", "donkey": "hee-haw",
    "crow": "caw", "lamb": "bleat",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "day": "night", "happy": "sad",
    "light": "dark", "old": "new", "open": "closed", "wet": "dry", "early": "late",
    "full": "empty", "hard": "soft", "long": "short", "strong": "weak", "left": "right",
    "clean": "dirty", "rich": "poor", "true": "false", "first": "last", "near": "far",
    "thick": "thin",
}  # fmt: skip
EMOJI = {
    "cat": "🐱", "dog": "🐶", "fox": "🦊", "bear": "🐻", "frog": "🐸", "star": "⭐", "heart": "❤️",
    "sun": "☀️", "tree": "🌳", "fish": "🐟", "moon": "🌙", "cake": "🎂",
    "apple": "🍎", "rain": "🌧️", "snow": "❄️", "house": "🏠", "car": "🚗", "rocket": "🚀",
    "bread": "🍞", "rose": "🌹", "bee": "🐝", "owl": "🦉", "family": "👨‍👩‍👧",
}  # fmt: skip
TRANSLATIONS = {
    "Chinese": {"cat": "猫", "water": "水", "moon": "月亮", "book": "书", "hello": "你好",
        "dog": "狗", "tree": "树",
    },
    "Japanese": {"cat": "ねこ", "water": "みず", "moon": "つき", "book": "本", "hello": "やあ",
        "dog": "犬", "tree": "木",
    },
    "Spanish": {"cat": "gato", "water": "agua", "moon": "luna", "book": "libro", "hello": "hola",
        "dog": "perro", "tree": "árbol",
    },
    "German": {"cat": "Katze", "water": "Wasser", "moon": "Mond", "book": "Buch", "hello": "hallo",
        "dog": "Hund", "tree": "Baum",
    },
    "Korean": {"cat": "고양이", "water": "물", "moon": "달", "dog": "개", "tree": "나무"},
    "French": {"cat": "chat", "water": "eau", "moon": "lune", "dog": "chien", "tree": "arbre"},
    "Russian": {"cat": "кот", "water": "вода", "moon": "луна", "book": "книга", "hello": "привет",
        "dog": "собака", "tree": "дерево",
    },
}  # fmt: skip
NUMBER_WORDS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
)  # fmt: skip
