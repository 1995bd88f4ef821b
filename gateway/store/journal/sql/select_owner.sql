SELECT belongs_to FROM owner WHERE one = 1
